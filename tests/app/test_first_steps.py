"""What a newcomer does first, with real clicks and keys: fields, folders, files, Train. One window for all tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.family_declaration import load_declaration
from app.runs.status import NO_RUN, Status
from app.shell.ask import Choice, ask
from app.widgets import theme
from app.widgets.button import Button
from app.widgets.copy_text import CopyText
from app.windows.chooser import choose_path
from app.windows.dialog import Dialog
from app.windows.folder_listing import Purpose
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host
from tests.app.driver import Driver
from tests.app.fake_runs import make_fake_run
from tests.app.in_sight import inside


@pytest.fixture
def driver(shared_driver: Driver, shared_home: Path) -> Iterator[Driver]:
    """The window of this module with new settings; no test leaves a dialog."""
    shared_driver.draft.new()
    shared_driver.settle()
    yield shared_driver
    assert shared_driver.dialogs() == []


@pytest.mark.parametrize("path", ["", "max_steps", "base_model"])
def test_click_on_a_placeholder_puts_the_caret_into_the_entry(driver: Driver, path: str) -> None:
    """Its word is "Search", "automatic" or "none"."""
    entry = driver.field(path).control if path else driver.window.header.search.entry
    if path == "base_model":
        driver.click_button("Hide")  # the tiles above it
    driver.click_really(entry._placeholder_label)
    driver.type("12")
    assert entry.get() == "12"
    driver.press("Escape")


def test_ctrl_a_selects_all_of_a_text_and_of_a_command_to_copy(driver: Driver) -> None:
    driver.window.show_section("generate")
    box = driver.window.sections["generate"].form.fields["prompt"].control
    driver.click_really(box.text)
    driver.type("a red disc")
    driver.press("ctrl+a")
    driver.type("x")
    assert box.get() == "x"
    dialog = Dialog(driver.window, "A line")
    line = CopyText(dialog.body, "Copy it")
    line.pack(fill="x")
    line.show("python train.py")
    dialog.show()
    driver.click_really(line.shown)
    driver.press("ctrl+a")
    assert line.shown.selection_get() == "python train.py"
    driver.press("Escape")


@pytest.mark.parametrize(
    ("purpose", "keys", "expected"),
    [
        ("folder", ["Return"], "photos"),  # what was chosen before is confirmed
        ("any", ["Return"], "photos"),
        ("folder", ["Down", "Down", "shift+Tab", "TYPE {home}/other", "CLICK Choose"], "other"),
        ("folder", ["shift+Tab", "TYPE {home}/nothing", "CLICK Choose", "TYPE {home}/other", "CLICK Choose"], "other"),
        ("folder", ["shift+Tab", "TYPE {home}/other", "Return", "LISTED c", "Return"], "other"),
        ("folder", ["Down", "Down", "CLICK Choose"], "photos/b"),
        ("folder", ["Down", "Return", "CLICK Choose"], "photos/a"),
        ("folder", ["WORD {home}/other", "CLICK Choose"], "other"),
        ("folder", ["ctrl+a", "WORD {home}/other", "CLICK Choose"], "other"),
        ("folder", ["ctrl+d", "WORD {home}/other", "CLICK Choose"], "other"),
        ("any", ["WORD a/../model.safetensors", "Return"], "photos/a/../model.safetensors"),
        ("any", ["shift+Tab", "TYPE {home}/photos/model.safetensors", "Return"], "photos/model.safetensors"),
        ("save", ["WORD a/../new", "Return"], "photos/a/../new.yaml"),
    ],
)  # fmt: skip
def test_folder_chooser_returns_what_is_typed_selected_or_listed(
    driver: Driver, shared_home: Path, purpose: Purpose, keys: list[str], expected: str
) -> None:
    for name in ("photos/a", "photos/b", "other/c"):
        (shared_home / name).mkdir(parents=True, exist_ok=True)
    (shared_home / "photos/model.safetensors").touch()

    def next_key() -> None:
        try:
            press_next()
        finally:  # or a key that is lost on a busy machine would leave the dialog open for ever
            if driver.dialogs():
                driver.window.after(50, next_key)

    def press_next() -> None:
        action, _, given = keys.pop(0).partition(" ") if keys else ("Escape", "", "")
        if action == "CLICK":
            driver.click_button(given)
        elif action == "LISTED":
            if given not in driver.listed_files():
                keys.insert(0, f"LISTED {given}")
        elif action in ("TYPE", "WORD"):
            if action == "TYPE":
                driver.press("ctrl+a")
            driver.type(given.format(home=shared_home))
        else:
            driver.press(action)

    driver.later(lambda: "b" in driver.listed_files(), next_key)
    endings = (".yaml",) if purpose == "save" else ()
    name = "settings.yaml" if purpose == "save" else ""  # its stem is selected: what is typed replaces it
    chosen = choose_path(driver.window, purpose, "Folder", shared_home / "photos", endings, name)
    assert chosen == str(shared_home / expected)
    assert keys == []


@pytest.mark.slow
def test_several_machines_is_no_dead_end(driver: Driver) -> None:
    """With Multi-GPU training off, the window says so and has the switch."""
    driver.go_to("multi_gpu")
    driver.click_button("Multiple machines…")
    (dialog,) = driver.dialogs()
    assert "“Multi-GPU training” is off" in driver.text(dialog), "why the fields are greyed"
    switch = driver.beside(dialog, "Multi-GPU training")
    driver.click_really(switch)
    driver.type_over(driver.beside(dialog, "Number of machines"), "2")
    driver.click_really(switch)
    driver.click_button("Generate launch commands")
    assert "“Multi-GPU training” is off: switch it on above" in driver.text(dialog)
    driver.click_really(switch)
    driver.in_chooser(lambda: (driver.type("machines"), driver.press("Return")))
    driver.click_button("Generate launch commands")
    driver.wait(lambda: "Machine 0" in driver.text(dialog), "the commands")
    assert "is off" not in driver.text(dialog)
    assert driver.draft.file is not None
    assert driver.draft.file.name == "machines.yaml", "which the commands name"
    driver.press("Escape")


def test_a_run_of_two_machines_asks_with_which_it_resumes(driver: Driver, shared_home: Path) -> None:
    run = make_fake_run(
        shared_home / "pair", steps=10, total=100, ended="stopped", num_nodes=2, enable_multi_gpu=True, device="cpu"
    )
    state, resume = driver.window.state_, driver.window.run_bar.buttons.resume
    state.actions.follow(run.path)
    driver.wait(resume.winfo_ismapped, "Resume")
    driver.click_really(resume)
    driver.wait(driver.dialogs, "the question with which settings")
    driver.click_button("Resume with its own settings")
    driver.wait(lambda: "pair trained on 2 machines" in driver.text(*driver.dialogs()), "the question")
    driver.press("Escape")
    driver.wait(lambda: not driver.window.actions.is_starting and resume.winfo_ismapped(), "Resume again")
    add_host(Host.make("beta", "192.0.2.2", "/srv/tandem"))
    driver.window.preferences.hosts = ["beta"]
    driver.click_really(resume)
    driver.wait(driver.dialogs, "the question with which settings")
    driver.click_button("Resume with its own settings")
    driver.wait(driver.dialogs, "the question")
    assert "all have joined again (beta started over ssh by this window)" in driver.text(driver.dialogs()[0])
    driver.window.preferences.hosts = []
    driver.click_button("On this machine alone")
    driver.wait(lambda: state.run is not None and state.run._process is not None, "a start")
    assert state.run is not None
    assert state.run._process is not None
    assert state.run._process.args[-2:] == ["--set", "num_nodes=1"]  # type: ignore[index]
    state.run.force_stop()
    driver.wait(lambda: state.run is not None and not state.run.is_alive, "its end")


def test_keyboard_goes_to_the_question_that_still_waits(driver: Driver) -> None:
    answers, wait = list[str](), (Choice("", "Wait", "accent"),)
    ask(driver.window, "Behind?", "", wait, lambda _: answers.append("behind"))
    ask(driver.window, "In front?", "", wait, lambda _: answers.append("front"))
    driver.press("Escape", "Escape")
    assert answers == ["front", "behind"]


@pytest.mark.slow
def test_train_lists_what_is_missing_and_waits_for_running_checks(
    driver: Driver, shared_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = driver.window.run_bar
    driver.follow_no_run()
    driver.search_and_type("base_model", str(shared_home / "lost" / "model"))
    driver.search_and_type("family", "no_such_family.py")
    driver.click_really(bar.buttons.train)
    driver.wait(lambda: "3 things to settle first" in driver.text(), "the list")
    words = driver.text(driver.dialogs()[0])
    assert all(part in words for part in ("no_such_family.py", "There are no images", "“Base model”: "))
    driver.press("Return")
    assert driver.window.section == "model"
    assert driver.window.sections["model"].holding(driver.window.focus_get()).path == "family"

    release = threading.Event()
    monkeypatch.setattr("app.family_loader._load", lambda name: (release.wait(30), load_declaration(name))[1])
    driver.draft.new()
    driver.draft.set("family", "flux")
    driver.click_really(bar.buttons.train)
    driver.wait(lambda: "There are no images" in driver.text(), "what is known before the family is loaded")
    driver.press("Escape")
    driver.draft.new()
    driver.search_and_type("family", str(shared_home / "slow.py"))
    driver.click_really(bar.buttons.train)
    driver.wait(lambda: "Checking the settings" in driver.text(), "the wait")
    driver.press("Escape")
    assert driver.dialogs() == []
    assert bar.actions.disabled_reasons(NO_RUN)["train"] == "", "it may be pressed again"

    bar.buttons.train.invoke()
    driver.window.set_scale(110)
    assert driver.window.run_bar is not bar
    assert driver.window.run_bar.buttons.train.cget("state") == "disabled", "the start is still under way"
    driver.wait(lambda: "Checking the settings" in driver.text(), "the wait of the start")
    release.set()
    driver.wait(lambda: "to settle first" in driver.text(), "what the start lacks")
    driver.press("Escape")
    driver.window.set_scale(100)


def test_file_changed_outside_is_not_overwritten_unasked(driver: Driver, shared_home: Path) -> None:
    """And a file of a few lines with comments stays one."""
    file = shared_home / "cats.yaml"
    file.write_text("# mine\nepochs: 20  # enough\n")
    driver.window.files.open(file)
    driver.search_and_type("epochs", "21")
    driver.press("ctrl+s")
    assert file.read_text() == "# mine\nepochs: 21  # enough\n"

    file.write_text("# theirs\nepochs: 30\n")
    driver.search_and_type("seed", "5")
    driver.press("ctrl+s")
    driver.click_button("Cancel")
    assert file.read_text() == "# theirs\nepochs: 30\n"
    driver.press("ctrl+s")
    driver.click_button("Keep mine")
    assert file.read_text() == "# theirs\nepochs: 21\nseed: 5\n"

    file.write_text("# theirs again\nepochs: 40\n")
    driver.search_and_type("seed", "6")
    driver.press("ctrl+s")
    driver.click_button("Open theirs")
    assert (driver.draft.get("epochs"), driver.draft.is_dirty) == (40, False)

    for theirs, fault in ((b"\xff\xfe", "is not UTF-8"), (b"", "is empty now")):
        file.write_bytes(theirs)
        driver.search_and_type("seed", f"{7 + len(theirs)}")
        driver.press("ctrl+s")
        driver.wait(driver.dialogs, "the question")
        words = driver.text(driver.dialogs()[0])
        assert fault in words
        assert "Open theirs" not in words
        driver.click_button("Cancel")
        assert file.read_bytes() == theirs, "a file that cannot be read is not replaced unasked"
    driver.press("ctrl+s")
    driver.click_button("Keep mine")
    assert "seed: 7" in file.read_text()
    file.unlink()
    driver.search_and_type("seed", "8")
    driver.press("ctrl+s")
    assert "seed: 8" in file.read_text(), "a file that is gone is written again"


def test_file_changed_outside_is_noticed_when_the_window_gets_the_keyboard_back(
    driver: Driver, shared_home: Path
) -> None:
    file = shared_home / "dogs.yaml"
    file.write_text("epochs: 20\n")
    driver.window.files.open(file)
    driver.press("F1", "Escape")
    assert driver.dialogs() == []
    for epochs, answer, expected in ((30, "Keep these", 20), (40, "Read the file again", 40)):
        file.write_text(f"epochs: {epochs}\n")
        driver.press("F1", "Escape")
        driver.wait(driver.dialogs, "the question")
        driver.answer(answer)
        driver.press("F1", "Escape")
        driver.wait(lambda: not driver.window.state_.background._pending, "rest")
        assert driver.dialogs() == [], "asked once"
        assert driver.draft.get("epochs") == expected


def test_buttons_of_the_run_bar_never_move_and_one_is_primary(driver: Driver, shared_home: Path) -> None:
    bar = driver.window.run_bar
    names = ("train", "stop", "back_up", "sample", "save")

    def places() -> list[tuple[int, int]]:
        driver.settle()
        shown = [each for each in inside(bar) if isinstance(each, Button)]
        first = bar.buttons.resume if bar.buttons.resume.winfo_viewable() else bar.buttons.train
        coloured = [each for each in shown if each.cget("text_color") == theme.ON_ACCENT and each.winfo_viewable()]
        assert coloured == [first]
        return [
            (button.winfo_rootx(), button.winfo_width()) for button in (getattr(bar.buttons, name) for name in names)
        ]

    driver.follow_no_run()
    bar.refresh()
    before = places()
    run = make_fake_run(shared_home / "moves", steps=10, total=100, ended="stopped")
    driver.window.state_.actions.follow(run.path)
    driver.wait(bar.buttons.resume.winfo_ismapped, "Resume")
    assert places() == before
    finished = make_fake_run(shared_home / "complete", steps=10)
    driver.window.state_.actions.follow(finished.path)
    driver.wait(bar.buttons.result.winfo_ismapped, "Show result")
    assert places() == before
    for kind in ("starting", "training", "stopping", "waiting"):
        bar.buttons.show(Status(kind, "", "busy", is_alive=True))
        assert places() == before, kind
    assert bar.buttons.slot.winfo_width() >= bar.buttons.join.winfo_reqwidth(), "its label is whole"


def test_add_a_folder_asks_which(driver: Driver, shared_home: Path) -> None:
    (shared_home / "images").mkdir(exist_ok=True)
    section_list = driver.go_to("data").list

    def is_listed() -> bool:
        return "images" in driver.listed_files() and section_list.frame.grab_current() is not None

    driver.later(is_listed, lambda: driver.press("Escape"))
    driver.click_really(section_list.add_button)
    assert section_list.items == []
    driver.later(is_listed, lambda: driver.press("Return"))
    driver.click_really(section_list.add_button)
    assert [concept["path"] for concept in section_list.items] == [str(shared_home)]
