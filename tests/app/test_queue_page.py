"""The queue in the real window: adding, ordering by mouse and keys, starting, and a window that is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tkinter as tk
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.monitor.queue_reader import QueueContent, QueueReader
from app.monitor.queue_table import queue_table, show_entries
from app.monitor.queue_texts import UNKNOWN, loss_text, progress_text, row_of, selected_text, settings_text
from app.monitor.run_list import RunList
from app.monitor.run_queue import QueuePage
from app.runs.actions import enqueued
from app.runs.queue_watch import QueueWatch
from app.runs.status import Status
from app.shell.closing import confirm_close
from app.widgets import theme
from modules.config import TrainConfig, find_option, load_config, save_config
from modules.run.queue.entries import Entry, Queue
from modules.run.queue.folder import RunQueue
from tests.app.driver import Driver
from tests.app.fake_runs import active, make_fake_run
from tests.app.run_driver import ROOT, Driven, tiny


@pytest.fixture(autouse=True)
def no_process_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill every process that a test leaves behind."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    for process in psutil.process_iter():
        try:
            if any(str(tmp_path) in word for word in process.cmdline()) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def row_middle(page: QueuePage, number: int) -> tuple[int, int]:
    """Where an entry's row is on the screen."""
    page.table.see(str(number))
    x, y, width, height = map(int, page.table.bbox(str(number)))
    return page.table.winfo_rootx() + x + width // 2, page.table.winfo_rooty() + y + height // 2


def drag(start: tuple[int, int], end: tuple[int, int]) -> None:
    """Drag with the X server's pointer."""
    moves = [word for part in (0.3, 0.7, 1.0) for word in _between(start, end, part)]
    subprocess.run(["xdotool", "mousemove", *map(str, start), "mousedown", "1", *moves, "mouseup", "1"], check=True)


def _between(start: tuple[int, int], end: tuple[int, int], part: float) -> list[str]:
    place = [str(round(a + (b - a) * part)) for a, b in zip(start, end, strict=True)]
    return ["mousemove", *place, "sleep", "0.05"]


def texts(page: QueuePage) -> list[str]:
    """Number and name of each row."""
    return [" ".join(page.table.item(item, "values")[:2]).strip() for item in page.table.get_children()]


@pytest.mark.slow
def test_order_by_mouse_and_keys(driver: Driver, home: Path, images: Path) -> None:
    queue = RunQueue("runs")
    names = ("one", "two", "three", "four")
    number = {name: queue.add(tiny(images, home, run_name=name, device="cpu")).number for name in names}
    driver.window.show_section("monitor")
    section = driver.window.sections["monitor"]
    section.open_page("queue")
    page = section.pages["queue"]
    driver.wait(lambda: len(texts(page)) == 4, "the entries")
    assert texts(page) == ["1 one", "2 two", "3 three", "4 four"]
    driver.settle()

    def until_order(*names: str) -> None:
        driver.wait(lambda: [entry.name for entry in queue.read().waiting] == list(names), f"{names}")
        rows = [f"{number[name]} {name}" for name in names]
        driver.wait(lambda: texts(page)[:4] == rows, "the rows, with the numbers of scripts/run_queue.py")

    drag(row_middle(page, 4), row_middle(page, 2))
    until_order("one", "four", "two", "three")
    drag(row_middle(page, 1), row_middle(page, 1))
    driver.wait(lambda: page.table.selection() == ("1",) and not page.drag.item, "the end of a click")
    until_order("one", "four", "two", "three")
    page.select(3)
    page.table.focus_force()
    driver.press("alt+Up")
    until_order("one", "four", "three", "two")
    driver.press("alt+Up", "alt+Down")
    until_order("one", "four", "three", "two")
    driver.click_really(page.bar.up_button)
    until_order("one", "three", "four", "two")
    driver.press("alt+Down")  # the button has the focus
    until_order("one", "four", "three", "two")
    page.select(4)
    page.table.focus_force()
    driver.press("Delete")
    until_order("one", "three", "two")
    driver.wait(lambda: texts(page) == ["1 one", "3 three", "2 two"], "no row of what never started")
    driver.wait(lambda: page.bar.undo_button.winfo_viewable(), "a way back")
    driver.click_really(page.bar.undo_button)
    until_order("one", "four", "three", "two")
    driver.wait(lambda: not page.bar.undo_button.winfo_viewable(), "nothing to take back")
    page.select(1)
    driver.settle()
    page.open_run()
    page._read_now()
    driver.wait(lambda: page._read_at > 0, "the queue as it was read again")
    assert page.bar.message.cget("text") == "one has no run folder yet.", "it is not overwritten"
    choose_devices(driver, page, queue)
    assert not queue.has_runner(), "nothing was started"


def choose_devices(driver: Driver, page: QueuePage, queue: RunQueue) -> None:
    line = page.bar.devices.control.line
    page.select(3)
    driver.wait(lambda: page.bar.devices._entry and page.bar.devices._entry.number == 3, "a field for its GPUs")
    line.focus_force()
    line.insert(0, "1,x")
    driver.press("Return")
    assert "GPUs is '1,x'" in page.bar.message.said, "longer than its place"
    line.delete(0, "end")
    line.insert(0, "1, 0")
    driver.press("Return")
    driver.wait(lambda: page.table.item("3", "values")[3] == "0,1", "the GPUs in the row")
    assert queue.read().entry(3).devices == [0, 1]
    queue.edit(lambda found: found.with_entry(found.entry(1).changed(state="finished")))
    config = load_config(queue.config_file(4))
    save_config(config.model_copy(update={"learning_rate": 0.5}), queue.config_file(4))
    page._reader = QueueReader()
    driver.wait(lambda: page.table.item("4", "values")[5].startswith("Learning rate: 0.5  ·  "), "what differs first")
    page.select(4)
    driver.wait(lambda: f"Output: {queue.runs_dir}" in page.bar.message.said, "where its run writes")
    images_first = f"Learning rate: 0.5  ·  {Path(config.concepts[0].path).name}  ·  100,000 steps  ·  "
    driver.wait(lambda: page.bar.message.said.startswith(images_first), "its settings, and which limit ends it")
    assert not any(title in page.bar.message.said for title in ("Model family: ", "Concepts: ", "Maximum steps: "))
    driver.click_really(page.bar.settings_button)
    driver.wait(lambda: driver.draft.get("learning_rate") == 0.5, "a copy of its settings")
    assert driver.draft.file is None, "what is saved does not change the queue"
    page.select(1)
    driver.wait(lambda: page.bar.repeat_button.cget("state") == "normal", "one that has ended")
    driver.click_really(page.bar.repeat_button)
    driver.wait(lambda: queue.read().entry(1).state == "waiting", "it waits again")
    queue.edit(lambda found: found.with_entry(found.entry(1).changed(state="finished")))
    driver.wait(lambda: page.bar.clear_button.cget("state") == "normal", "the ended one as it was read")
    driver.click_really(page.bar.clear_button)
    driver.wait(lambda: not page.table.exists("1"), "only what has not ended")
    assert all(entry.is_open for entry in queue.read().entries)
    driver.wait(lambda: page.bar.clear_button.cget("state") == "disabled", "nothing to clear")


RUNNER = """
import sys; from pathlib import Path
from modules.run.folder.run_lock import file_lock
with file_lock(Path(sys.argv[1])) as is_mine:
    print(is_mine, flush=True)
    sys.stdin.read()
"""


def test_closing_the_window_says_what_the_queue_goes_on_with(driver: Driver, home: Path, images: Path) -> None:
    queue, closed = RunQueue("runs"), list[str]()

    def close() -> str:
        confirm_close(driver.window, driver.window.state_, lambda: closed.append("closed"))
        return driver.text(next(iter(driver.dialogs()), driver.window))

    queue.add(tiny(images, home, run_name="one", device="cpu"))
    queue.add(tiny(images, home, run_name="two", device="cpu"))
    close()
    assert closed == ["closed"], "nobody works it off"
    holder = [sys.executable, "-c", RUNNER, str(queue.runner_lock)]
    with subprocess.Popen(holder, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"True\n"
        queue.want("run")
        assert "2 wait to be started. The queue has a process of its own" in close()
        driver.press("Escape")
        assert len(closed) == 1
        queue.edit(lambda found: found.with_entry(found.entry(1).changed(state="running")))
        assert "one is training, and 1 more waits to be started." in close()
        driver.click_button("Stop the queue")
        driver.wait(lambda: len(closed) == 2, "the end")
        assert queue.read().wanted == "stop"
        queue.edit(lambda found: found.with_entry(found.entry(1).changed(state="finished")))
        close()
        runner.stdin.close()
    assert len(closed) == 3, "nothing is left to do"


def read_the_queue_again(driver: Driver) -> QueueWatch:
    watch = driver.window.state_.queue_watch
    assert isinstance(watch, QueueWatch)
    watch._read_at = 0.0
    return watch


def test_without_a_run_the_bar_says_what_waits(driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.runs.queue_watch._EVERY_S", 0.1)
    read_the_queue_again(driver)
    queue, bar = RunQueue("runs"), driver.window.run_bar
    assert bar._detail_of(bar._status) == "Press Train to start."
    queue.add(TrainConfig(device="cpu"))
    driver.wait(lambda: "1 run waits in the queue." in bar._full_detail(), "the count")
    queue.add(TrainConfig(device="cpu"))
    driver.wait(lambda: bar._full_detail() == "Press Train to start. 2 runs wait in the queue.", "the count")
    (queue.path / "queue.json").write_text("{")
    driver.wait(lambda: bar._full_detail() == "Press Train to start.", "no count")


def test_the_bar_follows_what_the_queue_starts_next(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any page, and once: a run that the user looks at meanwhile stays."""
    monkeypatch.setattr("app.runs.queue_watch._EVERY_S", 0.1)
    monkeypatch.setattr("app.runs.queue_watch._WORKING_S", 0.1)
    queue, state = RunQueue("runs"), driver.window.state_

    def followed() -> str:
        return "" if state.run is None else state.run.folder.name

    def change(number: int, **values: Any) -> None:
        queue.edit(lambda found: found.with_entry(found.entry(number).changed(**values)))

    for name in ("one", "two"):
        make_fake_run(queue.run_folder(queue.add(TrainConfig(device="cpu", run_name=name))).path, steps=5)
    watch = read_the_queue_again(driver)
    change(1, state="running", started=1.0)
    driver.wait(lambda: followed() == "one", "the first run")
    change(1, state="finished", ended=2.0)
    change(2, state="running", started=2.0)
    driver.wait(lambda: followed() == "two", "the next run")
    state.actions.follow(queue.runs_dir / "one")
    read_at = watch._read_at
    driver.wait(lambda: watch._read_at > read_at + 1, "more readings")
    assert followed() == "one"


def test_a_broken_queue_is_named(driver: Driver, home: Path) -> None:
    queue = RunQueue("runs")
    queue.path.mkdir(parents=True)
    (queue.path / "queue.json").write_text('{"entries": [{"name": "../x"}]}')
    driver.window.show_section("monitor")
    section = driver.window.sections["monitor"]
    section.open_page("queue")
    page = section.pages["queue"]
    driver.wait(lambda: "queue.json" in page.bar.message.cget("text"), "the message")
    driver.click_really(page.start_button)
    driver.settle()
    assert (queue.path / "queue.json").read_text() == '{"entries": [{"name": "../x"}]}'


def test_an_empty_queue_and_gpus_that_are_not_there(driver: Driver, home: Path) -> None:
    driver.window.show_section("monitor")
    section = driver.window.sections["monitor"]
    section.open_page("queue")
    page = section.pages["queue"]
    driver.wait(lambda: "“Add current settings” adds" in driver.text(page.table), "how it is filled")
    driver.wait(lambda: page.start_button.cget("state") == "disabled", "nothing to do")
    height = page.bar.message.winfo_reqheight()
    queue = RunQueue("runs")
    queue.add(TrainConfig())
    page._read_now()
    driver.wait(lambda: page.table.exists("1"), "the entry")
    page.select(1)
    driver.wait(lambda: page.bar.devices._entry, "the field")
    line = page.bar.devices.control.line
    line.focus_force()
    line.insert(0, "999")
    driver.press("Return")
    driver.wait(lambda: "“GPU indices” names GPU 999" in page.bar.message.said, "the title of the setting")
    assert (line.get(), page.bar.devices.control._invalid) == ("999", True)
    assert str(page.bar.message.cget("fg")) == theme.resolve(theme.BAD)
    assert page.bar.message.winfo_reqheight() == height, "no button moves"
    assert page.start_button.cget("state") == "normal"


def test_adding_what_would_probably_fail(driver: Driver, home: Path, images: Path) -> None:
    driver.draft.set("concepts", [{"path": str(images)}])
    driver.draft.set("base_model", str(home / "nothing"))
    driver.settle()
    driver.window.state_.actions.enqueue()
    driver.wait(lambda: any("probably fail" in driver.text(one) for one in driver.dialogs()), "the doubt")
    driver.click_button("Add all the same")
    driver.wait(lambda: RunQueue("runs").read().waiting, "the entry")


def test_add_needs_what_train_needs(driver: Driver, home: Path) -> None:
    driver.click_really(driver.window.run_bar.buttons.enqueue)
    driver.wait(lambda: any("cannot start yet" in driver.text(one) for one in driver.dialogs()), "what is missing")
    driver.press("Escape")
    assert not RunQueue("runs").path.exists()


def test_what_waits_for_a_machine_that_joins_by_hand_is_added_with_a_word_of_it(images: Path, tmp_path: Path) -> None:
    """It keeps the queue waiting for half an hour."""
    config = tiny(images, tmp_path, run_name="cats", num_nodes=3, enable_multi_gpu=True)
    said = enqueued(RunQueue(tmp_path / "runs"), config, [])
    assert said.startswith("Queued at place 1. Its run waits until 2 machines join by hand")


@pytest.mark.slow
def test_add_start_and_follow(preferences: Path, images: Path, tmp_path: Path) -> None:
    """Train's neighbour adds, the page starts; the window closes, the queue goes on, the next window shows it."""
    file, place = tmp_path / "cats.json", tmp_path
    save_config(tiny(images, place, run_name="cats", device="cpu", backup_every="5 steps"), file)
    queue = RunQueue(tmp_path / "runs")
    driven = Driven(file)
    try:
        driven.until(lambda: driven.window.state_.family.declaration is not None, "the family")
        driven.click(driven.window.run_bar.buttons.enqueue)
        driven.until(lambda: queue.read().waiting, "an entry")
        said = "Queued at place 1. To begin, press Start queue under Monitor, Queue."
        bar = driven.window.run_bar
        driven.until(
            lambda: bar._full_detail() == said and str(bar._detail.cget("text")).split() == said.split(),
            "whole message",
        )
        driven.until(lambda: not driven.window.state_.actions._starting, "the end of adding")
        driven.press("F4")
        driven.until(lambda: len(queue.read().waiting) == 2, "a second entry")
        assert [entry.name for entry in queue.read().waiting] == ["cats", "cats-2"]
        page: Any = driven.monitor("queue")
        driven.until(lambda: len(page.table.get_children()) == 2, "rows")
        driven.click(page.start_button)
        driven.until(lambda: queue.read().entry(1).state == "running", "a run")
        driven.until(lambda: page.has_runner and "Working" in page.status.cget("text"), "the state")
        assert page.start_button.cget("text") == "Pause queue"
        assert queue.has_runner()
        driven.until(lambda: driven.status() == "training", "the run in the run bar")
        assert driven.window.run_bar.buttons.train.cget("state") == "disabled", "two runs would share the GPUs"
    finally:
        driven.close()
    time.sleep(1)
    assert queue.has_runner(), "it needs no window"
    driven = Driven(file)
    try:
        page = driven.monitor("queue")
        driven.until(lambda: page.has_runner, "the queue again")
        page.select(1)
        page.table.focus_force()
        driven.press("Return")
        driven.until(lambda: driven.status() == "training", "training")
        section = driven.window.sections["monitor"]
        assert section.page == "curves"
        assert driven.window.state_.run.folder.name == "cats"
        page = driven.monitor("queue")
        driven.click(page.stop_button)
        driven.until(lambda: not queue.has_runner(), "the end of the process")
        assert queue.read().entry(1).state == "waiting"
        driven.until(lambda: "Not started" in page.status.cget("text"), "the state")
        driven.until(lambda: driven.status() == "stopped", "the same word as after Stop in the run bar")
    finally:
        driven.close()


def test_both_limits_of_a_run_are_told(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    lengths: list[dict[str, Any]] = [{"max_steps": 1500, "epochs": 3}, {"max_steps": 500}, {"epochs": 1}]
    for length in lengths:
        queue.add(TrainConfig(device="cpu", **length))
    settings = QueueReader().read(queue).settings
    assert not any("steps or" in said for said in settings.values()), "nothing else is said first"
    assert settings[3].startswith("1 epoch  ·  ")
    settings = QueueReader().read(queue, {1: UNKNOWN, 2: UNKNOWN}).settings
    assert settings[1].startswith("1,500 steps or 3 epochs, whichever first  ·  ")
    assert settings[2].startswith("500 steps or 10 epochs, whichever first  ·  ")
    assert settings[3].startswith("1 epoch  ·  ")
    counted = QueueReader().read(queue, {1: 180, 2: 500, 3: 60}).settings
    assert counted[1].startswith("3 epochs (180 steps)  ·  ")
    assert counted[2].startswith("500 steps  ·  ")
    assert counted[3].startswith("1 epoch  ·  ")


def test_a_stopped_entry_says_its_step(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    for name, state, ended in (
        ("cats", "stopped", "stopped"),
        ("dogs", "finished", "finished"),
        ("owls", "failed", None),
    ):
        entry = queue.add(TrainConfig(device="cpu", run_name=name))
        make_fake_run(queue.run_folder(entry).path, steps=120, total=1000, ended=ended)
        queue.edit(lambda found, entry=entry, state=state: found.with_entry(entry.changed(state=state)))  # type: ignore[misc]
    content = QueueReader().read(queue)
    results, runs = content.results, RunList()
    folders = [queue.run_folder(entry).path for entry in queue.read().entries]
    assert list(content.durations_s.values()) == [run.duration_s for run in runs.read(folders)]
    assert results[1].startswith("step 120 of 1,000, ")
    assert "step" not in results[2], "all of them"
    owls = queue.run_folder(queue.read().entry(3)).path
    with active(owls):
        assert QueueReader().read(queue).queue.entry(3).reason == "Resumed, not by the queue"
    make_fake_run(owls, steps=120)
    complete = QueueReader().read(queue)
    assert complete.queue.entry(3).state == "finished", "resumed since"
    assert "loss" in complete.results[3]


def test_a_narrow_queue_shows_no_columns_that_say_nothing(shared_driver: Driver) -> None:
    window = tk.Toplevel(shared_driver.window)
    window.geometry("700x200+0+0")
    shown = queue_table(window)
    entry = Entry(number=1, name="stable_diffusion_xl-portrait-lora-rank-16", devices=None, added=time.time())
    queue = Queue(next_number=2, entries=[entry])
    shared_driver.settle()
    show_entries(shown, QueueContent(queue, settings={1: "25 epochs"}))
    shared_driver.settle()
    assert {"devices", "result"}.isdisjoint(shown["displaycolumns"])
    assert shown.item("1", "values")[4] == time.strftime("added %H:%M"), "today needs no date"
    queue = Queue(next_number=2, entries=[entry.model_copy(update={"devices": [1]})])
    show_entries(shown, QueueContent(queue, settings={1: "25 epochs"}, results={1: "loss 0.05"}))
    shared_driver.settle()
    assert {"devices", "result"} <= set(shown["displaycolumns"])
    window.destroy()


def test_what_the_selected_entry_was_is_told_whole() -> None:
    """Of one that has ended, how, when and how long it trained, and where its run is."""
    finished = Entry(number=1, name="cats", devices=None, added=1.0, started=60.0, ended=180.0, state="finished")
    finished = finished.changed(exit_code=0, reason="Finished")
    when = row_of(finished, run_s=125.0)[4]
    assert when.endswith(", 2 min"), "as Runs says, without the start of the program"
    said = selected_text(finished, "512 px", "loss 0.05", Path("runs/cats"), 125.0)
    assert said == f"Finished {when}  ·  loss 0.05  ·  Output: runs/cats  ·  512 px"
    failed = finished.changed(state="failed", exit_code=2, reason="No such folder\nNo file cats")
    said = selected_text(failed, "", "", Path("runs/cats"), 125.0)
    assert said == f"No such folder (exit code 2)  ·  {when}  ·  Output: runs/cats\nNo file cats"
    waiting = Entry(number=2, name="dogs", devices=None, added=1.0)
    assert selected_text(waiting, "512 px", "", Path("runs/dogs")) == "512 px  ·  Output: runs/dogs"


def test_cells_of_a_row() -> None:
    """The result does not repeat the state; the machines over ssh stand beside the GPUs."""

    def result(**values: Any) -> str:
        entry = Entry(number=1, name="cats", devices=None, added=1.0, ended=2.0, **values)
        return row_of(entry, result="loss 0.05")[-1]

    assert row_of(Entry(number=1, name="cats", devices=None, hosts=["beta"], added=1.0))[3] == "All + beta"
    assert row_of(Entry(number=1, name="cats", devices=[0, 1], place="beta", added=1.0))[3] == "beta: 0,1"
    waiting = Entry(number=1, name="cats", devices=None, gpus=2, added=1.0, reason="Continues from its last backup")
    said = "Waits until 2 GPUs are free: dogs trains"
    cells = row_of(waiting.changed(waits=said))
    assert (cells[3], cells[-1]) == ("Any 2", said)
    assert selected_text(waiting.changed(waits=said), "", "", Path("x")).startswith(f"{said}  ·  Continues from")
    assert row_of(waiting.changed(state="running", given=[1, 3]))[3] == "1,3"
    assert result(state="finished", exit_code=0, reason="Finished") == "loss 0.05"
    assert result(state="stopped", exit_code=130, reason="Stopped") == "loss 0.05"
    assert result(state="failed", exit_code=2, reason="No such folder") == "No such folder (exit code 2)"
    family, options = (find_option(TrainConfig, name) for name in ("family", "family_options"))
    assert family is not None
    assert options is not None
    assert settings_text([(options, {}), (family, "/home/me/models/own_family.py")]) == "own_family.py"
    assert (
        progress_text(Status("training", "Training", "busy", is_alive=True), 120, 1000, 0.05)
        == "step 120 of 1,000, loss 0.05"
    )
    sampling = Status("sampling", "Generating samples", "busy", is_alive=True)
    assert progress_text(sampling, 120, None, None) == "step 120, generating samples"
    assert progress_text(Status("loading", "Loading", "busy", is_alive=True), None, None, None) == "loading"
    assert loss_text(0.05, None) == "loss 0.05"
    assert loss_text(0.05, 0.0625) == "validation 0.0625, loss 0.05"
