"""The Runs page by mouse and keys: search, rename, tags and notes, trash and back, folders, debug package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tkinter as tk
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tkinter import ttk
from typing import Any

import pytest

from app.monitor.run_list import setting_differences
from app.monitor.runs import RunsPage
from app.widgets.button import Button
from modules.config import TrainConfig, load_config, save_config
from modules.run import RunFolder
from modules.run.folder.run_notes import read_notes
from modules.run.queue.own_copy import own_copy
from modules.run.remote.run_copy import Copy, mark_copy
from tests.app.fake_runs import active, make_fake_run
from tests.app.run_driver import Driven

pytestmark = pytest.mark.slow


@pytest.fixture
def driven(home: Path, preferences: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    for number, name in enumerate(("cats", "dogs", "birds")):
        make_fake_run(home / "runs" / name, steps=20, started_at=1.7e9 + 1000 * number, ended="failed")
    make_fake_run(home / "usb" / "old-runs" / "cats", steps=10, started_at=1.6e9)
    driven = Driven()
    yield driven
    driven.close()


@pytest.fixture
def page(driven: Driven) -> RunsPage:
    page: RunsPage = driven.monitor("runs")
    driven.until(lambda: len(page.runs) == 3, "the runs")
    return page


def dialogs(driven: Driven) -> list[tk.Toplevel]:
    return [each for each in widgets(driven.window) if isinstance(each, tk.Toplevel) and each.winfo_viewable()]


def opened(driven: Driven) -> tk.Toplevel:
    """The dialog, once it has the keyboard."""
    driven.until(lambda: dialogs(driven), "a dialog")
    driven.until(lambda: str(driven.window.focus_displayof()).startswith(str(dialogs(driven)[0])), "its focus")
    driven.live(0.2)
    return dialogs(driven)[0]


def widgets(parent: tk.Misc) -> list[Any]:
    return [each for child in parent.winfo_children() for each in (child, *widgets(child))]


def in_chooser(driven: Driven, action: Callable[[], object]) -> None:
    """Do something once the file chooser that is opened next has the keyboard in one of its controls."""
    before = len(dialogs(driven))

    def look() -> None:
        open_now = dialogs(driven)
        if len(open_now) > before and str(driven.window.tk.call("focus")).startswith(f"{open_now[-1]}."):
            try:
                action()
            except BaseException:
                open_now[-1].destroy()  # whose answer the test would wait for without an end
                raise
        else:
            driven.window.after(20, look)

    look()


def button(place: tk.Misc, label: str) -> Any:
    return next(each for each in widgets(place) if hasattr(each, "invoke") and each.cget("text") == label)


def type_keys(driven: Driven, text: str) -> None:
    subprocess.run(["xdotool", "type", "--delay", "5", text], check=True)
    driven.live(0.1)


def select(driven: Driven, page: RunsPage, *names: str) -> None:
    for number, name in enumerate(names):
        subprocess.run(["xdotool", "keydown" if number else "keyup", "ctrl"], check=True)
        driven.click_row(page.table, name)
    subprocess.run(["xdotool", "keyup", "ctrl"], check=True)
    driven.until(lambda: {each.name for each in page.selected} == set(names), "the selection", within_s=20)


def choose_in_menu(driven: Driven, page: RunsPage, name: str, label: str) -> None:
    """Click an entry of the menu that the right button opens on a run."""
    driven.click_row(page.table, name, button=3)
    driven.choose(label)


def shown(page: RunsPage) -> list[str]:
    return list(page.table.get_children())


def test_a_run_of_the_queue_differs_only_in_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrainConfig.model_validate({"concepts": [{"path": "images"}]})
    whole = own_copy(config.model_copy(update={"learning_rate": 0.5}), tmp_path / "runs", None)
    runs = [Path("runs/direct"), tmp_path / "runs" / "queued"]
    for run, each in zip(runs, (config, whole), strict=True):
        run.mkdir(parents=True)
        save_config(each, RunFolder(run).config_file)
    assert setting_differences(runs) == [("learning_rate", ["1e-4", "0.5"])]
    other = config.model_copy(update={"cache_dir": "/elsewhere", "processes_per_node": (4, 2)})
    save_config(other, RunFolder(runs[0]).config_file)
    names = [name for name, _ in setting_differences(runs)]
    assert names == ["cache_dir", "learning_rate", "processes_per_node"]
    assert dict(setting_differences(runs))["processes_per_node"] == ["4, 2", "-"], "as its field shows it"


def test_search_narrows_the_table(driven: Driven, page: RunsPage) -> None:
    driven.click(page.search.line)
    type_keys(driven, "og")
    assert shown(page) == ["dogs"]
    assert page.count.cget("text") == "1 of 3 runs"
    type_keys(driven, "xx")
    assert shown(page) == []
    assert page.bar.message.said == "No run matches “ogxx”."
    driven.window.set_scale(110)
    page = driven.monitor("runs")
    driven.until(lambda: page.bar.message.said == "No run matches “ogxx”.", "the search at another scale")
    driven.window.set_scale(100)
    page = driven.monitor("runs")
    driven.until(lambda: page.count.cget("text") == "0 of 3 runs", "the search")
    driven.click(page.search.line)
    driven.press("Escape")
    assert shown(page) == ["birds", "dogs", "cats"], "newest first, all again"
    assert page.search.get() == ""


def test_rename_by_keys_takes_everything_along(driven: Driven, page: RunsPage, home: Path) -> None:
    before = home / "runs" / "cats"
    driven.window.preferences.recent = [str(before / "config.json"), str(home / "other.yaml")]
    driven.window.state_.actions.follow(before)
    driven.window.state_.draft.set("base_model", str(before / "model"))
    driven.until(lambda: driven.window.state_.run.is_caught_up, "the run")
    select(driven, page, "cats")
    driven.press("F2")
    opened(driven)
    type_keys(driven, "dogs")
    driven.press("Return")
    assert "already has something named dogs" in texts(dialogs(driven)[0]), "a name that exists is refused"
    driven.press("ctrl+a")
    type_keys(driven, "a/b")
    driven.press("Return")
    assert "may contain only letters" in texts(dialogs(driven)[0])
    driven.press("ctrl+a")
    type_keys(driven, "lions")
    mark_copy(RunFolder(before), Copy(machine="beta"))
    driven.press("Return")
    assert "cats is still on beta under this name" in texts(dialogs(driven)[0])
    RunFolder(before).remote_file.unlink()
    driven.press("Return")
    driven.until(lambda: not dialogs(driven) and "lions" in page.runs, "the new name")
    assert [run.name for run in page.selected] == ["lions"], "it stays selected"
    after = home / "runs" / "lions"
    assert not before.exists()
    assert load_config(after / "config.json").run_name == "lions"
    assert driven.window.preferences.recent == [str(after / "config.json"), str(home / "other.yaml")]
    assert driven.window.preferences.last_run == str(after)
    assert driven.window.state_.run.folder.path == after
    assert driven.window.state_.draft.get("base_model") == str(after / "model")


def texts(place: tk.Misc) -> str:
    return "\n".join(str(each.cget("text")) for each in widgets(place) if isinstance(each, (tk.Label, Button)))


def test_tags_and_notes_are_kept_shown_and_found(driven: Driven, page: RunsPage, home: Path) -> None:
    select(driven, page, "birds")
    driven.click(page.bar.more)
    driven.choose("Tags and notes…")
    opened(driven)
    type_keys(driven, "portrait, v2")
    driven.press("Tab")
    type_keys(driven, "Better hands")
    driven.click(button(dialogs(driven)[0], "Save"))
    driven.until(lambda: page.runs["birds"].notes.tags == ["portrait", "v2"], "the notes in the table")
    assert page.table.item("birds", "values")[7] == "#portrait #v2  Better hands"
    assert read_notes(RunFolder(home / "runs" / "birds")).note == "Better hands"
    driven.click(page.search.line)
    type_keys(driven, "#portrait hands")
    assert shown(page) == ["birds"]


def test_runs_go_to_the_trash_and_back(driven: Driven, page: RunsPage, home: Path) -> None:
    driven.window.state_.actions.follow(home / "runs" / "cats")
    select(driven, page, "cats", "dogs")
    driven.press("Delete")
    opened(driven)
    driven.press("Return")
    driven.live(0.2)
    assert (home / "runs" / "cats").is_dir(), "Return keeps them"
    select(driven, page, "cats")
    driven.press("Delete")
    opened(driven)
    assert "With all its samples, backups and saved models. “Undo” takes it back." in texts(dialogs(driven)[0])
    driven.press("Escape")
    select(driven, page, "cats", "dogs")
    driven.press("Delete")
    opened(driven)
    driven.click(button(dialogs(driven)[0], "Move to the trash"))
    driven.until(lambda: set(page.runs) == {"birds"}, "two gone")
    trash = home / "data" / "Trash"
    assert sorted(path.name for path in (trash / "files").iterdir()) == ["cats", "dogs"]
    assert str(trash / "files") in page.bar.message.said
    assert driven.window.state_.run is None, "a deleted run is followed no longer"
    assert driven.window.run_bar._title.cget("text") == "No run yet"
    driven.window.set_scale(110)
    page = driven.monitor("runs")
    driven.until(page.bar.undo.winfo_ismapped, "the way back, also at another scale")
    driven.click(page.bar.undo)
    driven.until(lambda: len(page.runs) == 3, "all back")
    assert not list(trash.rglob("*.trashinfo"))
    assert not page.bar.undo.winfo_ismapped()


def test_comparison_in_a_low_window_takes_the_place_of_the_list(driven: Driven, page: RunsPage) -> None:
    select(driven, page, "cats", "dogs")
    assert page.comparison is not None
    driven.until(page.comparison.winfo_ismapped, "the comparison")
    assert page.table.winfo_ismapped(), "there is room for both"
    assert not page.compare_button.winfo_ismapped()
    driven.window.set_scale(150)
    page = driven.monitor("runs")
    driven.until(lambda: len(page.selected) == 2, "the selection from before the change of scale")
    driven.until(page.compare_button.winfo_ismapped, "the button")
    assert page.table.winfo_ismapped()
    assert page.comparison is not None
    assert not page.comparison.winfo_ismapped()
    driven.click(page.compare_button)
    driven.until(page.comparison.plot.surface.winfo_ismapped, "the chart")
    driven.live(0.2)
    assert page.comparison.plot.surface.winfo_height() > 150
    assert page.comparison.winfo_y() + page.comparison.winfo_height() <= page.bar.winfo_y()
    assert page.bar.message.said == "Comparing 2 runs."
    driven.press("space")
    driven.until(page.table.winfo_ismapped, "the list, by the key that presses the button in focus")
    assert [run.name for run in page.selected] == ["dogs", "cats"]


def test_active_run_is_neither_renamed_nor_deleted(driven: Driven, page: RunsPage, home: Path) -> None:
    folder = home / "runs" / "dogs"
    with active(folder):
        select(driven, page, "dogs")
        driven.press("Delete")
        opened(driven)
        driven.click(button(dialogs(driven)[0], "Move to the trash"))
        refusal = "dogs is active; it can be deleted once it has ended"
        driven.until(lambda: refusal in page.bar.message.said, "the refusal")
        driven.press("F2")
        opened(driven)
        type_keys(driven, "wolves")
        driven.press("Return")
        assert "is active; it can be renamed once it has ended" in texts(dialogs(driven)[0])
        driven.press("Escape")
    assert folder.is_dir()


def test_other_folders_are_listed_and_removed(driven: Driven, page: RunsPage, home: Path) -> None:
    driven.click(page.folders_button)
    window = opened(driven)

    def answer() -> None:
        chooser = dialogs(driven)[-1]
        path = next(each for each in widgets(chooser) if each.winfo_class() == "Entry" and "/" in each.get())
        driven.until(path.winfo_viewable, "the path")
        driven.click(path)
        driven.until(lambda: driven.window.focus_get() == path, "the keyboard in the path")
        driven.press("ctrl+a")
        type_keys(driven, str(home / "usb" / "old-runs"))
        said = f"Chosen: {home / 'usb' / 'old-runs'} (1 run)"
        driven.until(lambda: said in texts(chooser), "the path, and what it holds")
        driven.click(button(chooser, "Choose"))

    in_chooser(driven, answer)
    driven.click(button(window, "Add a folder…"))
    driven.until(lambda: len(page.runs) == 4, "the other folder's run")
    other = str(home / "usb" / "old-runs" / "cats")
    assert page.table.item(other, "values")[0] == "cats  (old-runs)"
    assert page.table.item("cats", "values")[0] == "cats  (runs)"
    assert driven.window.preferences.load().runs_folders == [str(home / "usb" / "old-runs")], "also next time"
    page.select(["cats", other])
    driven.until(lambda: page.comparison is not None and len(page.comparison.plot.lines) == 2, "both compared")
    assert page.comparison is not None
    assert {line.name for line in page.comparison.plot.lines} == {"cats  (old-runs)", "cats  (runs)"}
    driven.click(button(window, "Remove"))
    driven.until(lambda: len(page.runs) == 3, "only those of the settings")
    driven.press("Escape")
    assert (home / "usb" / "old-runs" / "cats").is_dir()


def test_folder_and_report_are_opened(
    driven: Driven, page: RunsPage, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program of this system, which may fail after it was started."""
    program = home / "bin" / "xdg-open"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$1" > {home}/shown; exit $(cat {home}/code)\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    said: list[str] = []
    monkeypatch.setattr(driven.window.state_, "say", said.append)
    folder = home / "runs" / "dogs"
    for path, show, missing in (
        (folder, lambda: choose_in_menu(driven, page, "dogs", "Open folder"), "No file manager"),
        (folder / "report.html", lambda: driven.click(page.bar.report), "No browser"),
    ):
        for code in (0, 4):
            said.clear()
            (home / "code").write_text(str(code))
            show()
            driven.until(lambda: said and "Opening" not in said[-1], "the end of the program")
            assert said[0] == f"Opening {path}…"
            assert (home / "shown").read_text() == f"{path}\n"
            assert code or said[-1] == f"Opened {path}."
        assert f"{missing} could be opened (exit code 4); open {path} yourself" in page.bar.message.said
    program.unlink()
    (program.parent / "xdotool").symlink_to(str(shutil.which("xdotool")))
    monkeypatch.setenv("PATH", str(program.parent))
    choose_in_menu(driven, page, "dogs", "Open folder")
    driven.until(lambda: "no program xdg-open" in page.bar.message.said, "what is missing")


def test_page_that_lies_in_a_run_folder_is_not_opened_in_place_of_the_report(
    driven: Driven, page: RunsPage, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr("app.monitor.runs.show_page", lambda state, file, failed: shown.append(file))
    folder = home / "runs" / "dogs"
    (folder / "report.html").unlink(missing_ok=True)
    (folder / "report.html").mkdir()  # as on a disk that may only be read: nothing can be written there
    driven.click_row(page.table, "dogs")
    driven.click(page.bar.report)
    driven.until(lambda: shown, "a report elsewhere")
    assert "default-src 'none'" in shown[0].read_text()
    assert folder not in shown[0].parents
    (folder / "report.html").rmdir()
    (folder / "report.html").write_text("<script>document.title = 'foreign'</script>")
    link = folder / "samples" / "x.png"
    link.symlink_to("/etc/hostname")
    driven.click(page.bar.report)
    driven.until(lambda: f"{link} is a link" in page.bar.message.said, "why there is none")
    assert len(shown) == 1


def test_result_of_any_run_and_generating_with_it(driven: Driven, page: RunsPage, home: Path) -> None:
    """Not that of the run that is followed."""
    RunFolder(home / "runs" / "dogs").model_file.write_bytes(b"its weights")
    choose_in_menu(driven, page, "dogs", "Show result")
    dialog = opened(driven)
    assert "Result of dogs" in texts(dialog)
    generate = button(dialog, "Generate with it")
    driven.until(lambda: generate.cget("state") == "normal", "the folder read")
    driven.click(generate)
    driven.until(lambda: driven.window.section == "generate", "the page")
    driven.until(lambda: "The run dogs has not saved a model yet" in texts(driven.window), "whose model it is")


def test_debug_package_is_seen_before_it_is_written(driven: Driven, page: RunsPage, home: Path) -> None:
    before = set(home.rglob("*"))
    choose_in_menu(driven, page, "cats", "Debug package…")
    dialog = opened(driven)
    save = button(dialog, "Save…")
    driven.until(lambda: save.cget("state") == "normal", "the parts")
    listed = next(each for each in widgets(dialog) if isinstance(each, ttk.Treeview)).get_children()
    assert {"about.txt", "config.json", "events.jsonl", "versions.txt", "devices.txt"} <= set(listed)
    preview = next(each for each in widgets(dialog) if isinstance(each, tk.Text))
    driven.until(lambda: "Debug package of Tandem" in preview.get("1.0", "end"), "what is in it")
    assert set(home.rglob("*")) == before, "nothing is written yet"
    in_chooser(driven, lambda: driven.press("Return"))
    driven.click(save)
    driven.until(lambda: (home / "cats-debug.zip").is_file(), "the file")
    with zipfile.ZipFile(home / "cats-debug.zip") as package:
        assert set(package.namelist()) == set(listed)
    driven.until(lambda: "cats-debug.zip" in texts(dialog), "where it is")
    driven.press("Escape")
