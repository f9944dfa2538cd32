"""Runs that the window starts, follows, leaves and finds again, with real training processes and kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.runs.control import RunControl, active_runs, create_run, existing_run, launch, next_free_name
from modules.config import load_preset, save_config
from modules.run import RunFolder, read_events
from modules.run.folder.pidfile import find_launcher
from scripts.make_demo_data import make_demo_data
from tests.app.run_driver import ROOT, Driven, click_at, rank_0, tiny

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Limit threads, and kill every process that a test leaves behind."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    for process in psutil.process_iter():
        try:
            if any(str(tmp_path) in word for word in process.cmdline()) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def until(condition: Callable[[], object], what: str, within_s: float = 200) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {within_s} s"
        time.sleep(0.02)


def steps(control: RunControl) -> int:
    with control.view.lock:
        return 0 if control.view.step is None else control.view.step.step


def test_life_of_a_run_without_a_window(images: Path, tmp_path: Path) -> None:
    """Start, backup, sample, save, killed launcher, forced stop, resume, hang and stop, in one folder."""
    config = tiny(images, tmp_path, run_name="cats")
    assert existing_run(config) is None
    folder = create_run(config)
    control = RunControl(folder.path, launch(folder))
    assert control.is_alive, "from the very first moment"
    assert active_runs(tmp_path / "runs") == [folder.path]
    until(lambda: control.status().kind == "training" and steps(control) > 3, "training")
    assert existing_run(config) == folder
    assert next_free_name(folder) == "cats-2"
    for name in ("backup", "sample", "save"):
        assert control.request(name) == ""
        assert control.is_pending(name)
    until(lambda: control.view.backup_step and len(control.view.samples) == 2, "backup and samples")
    until(lambda: (folder.model_dir / "tandem.json").exists(), "saved model")
    until(lambda: not any(control.is_pending(name) for name in ("backup", "sample", "save")), "an answer")

    launcher = find_launcher(folder)
    assert launcher is not None
    launcher.process.kill()
    before = steps(control)
    until(lambda: steps(control) > before + 20, "steps without a launcher")
    assert control.status().kind == "training"
    control.force_stop()
    until(lambda: not control.is_alive, "end")
    status = control.status()
    assert (status.kind, status.can_resume) == ("killed", True)
    assert status.problem is not None
    assert f"step {control.view.backup_step}" in status.detail
    control.detach()

    of_two_machines = {**json.loads(folder.config_file.read_text("utf-8")), "enable_multi_gpu": True, "num_nodes": 2}
    folder.config_file.write_text(json.dumps(of_two_machines), "utf-8")
    control = RunControl(folder.path, launch(folder, resume=True, alone=True))
    until(lambda: control.status().kind == "training" and control.has_started, "going on without the other machine")
    assert steps(control) <= before + 25, "from the backup"
    worker = rank_0(folder)
    worker.suspend()  # a hang: it holds the lock but does not respond
    assert control.stop() == ""
    until(lambda: control.status().kind == "stopping", "stopping")
    time.sleep(0.5)
    assert control.is_alive
    control.force_stop()
    until(lambda: not control.is_alive, "end")
    assert not worker.is_running()
    assert control.status().kind == "terminated"
    assert active_runs(tmp_path / "runs") == []
    control.detach()


def test_failed_start_is_read_from_its_record(images: Path, tmp_path: Path) -> None:
    folder = create_run(tiny(images, tmp_path, run_name="invalid"))
    folder.config_file.write_text('{"resolution": 4}')
    control = RunControl(folder.path, launch(folder))
    until(lambda: not control.is_alive and control.status().kind == "failed", "the end")
    folder.console_file.write_text("something else\n")  # what was printed does not matter
    status = control.status()
    assert (status.title, status.can_resume) == ("Did not start", False), "there is nothing to resume"
    assert status.problem is not None
    assert "resolution is 4; it must be a whole number" in status.problem.text
    assert status.problem.failure == "config"
    control.detach()
    folder.events_file.write_text('{"t": 1.0, "type": "started", "config": {}}\n')
    control = RunControl(folder.path)
    until(lambda: control.status().title == "Did not start", "the reason")
    assert control.status().can_resume, "it has trained before"
    control.detach()


def test_early_stop_request_is_not_lost(images: Path, tmp_path: Path) -> None:
    folder = create_run(tiny(images, tmp_path, run_name="early", family_options={"slow_encode_s": 0.2}))
    control = RunControl(folder.path, launch(folder))
    assert control.stop() == ""

    def has_ended() -> bool:
        control.resend_stop()
        return not control.is_alive

    until(has_ended, "end")
    assert control.status().kind == "stopped"
    control.detach()


def test_run_with_deleted_folder_can_be_stopped(images: Path, tmp_path: Path) -> None:
    folder = create_run(tiny(images, tmp_path, run_name="gone"))
    control = RunControl(folder.path, launch(folder))
    until(lambda: control.status().kind == "training" and steps(control) > 3, "training")
    worker = rank_0(folder)
    removed = folder.path.rename(tmp_path / "removed")  # at once: the run writes new files while a tree is removed
    shutil.rmtree(removed)
    # the trainer recreates it, maybe before the window has polled
    until(lambda: control.status().kind == "missing" or folder.path.exists(), "notice")
    if control.is_alive:  # or it has ended by itself without its folder
        control.force_stop()
    until(lambda: not control.is_alive and not (worker.is_running() and worker.status() != "zombie"), "end")
    control.detach()


class OtherWindow:
    """A window in a separate process, driven by xdotool."""

    def __init__(self, state_file: Path, *arguments: str) -> None:
        self.state_file = state_file
        state_file.unlink(missing_ok=True)
        argv = [sys.executable, str(ROOT / "tests" / "app" / "window_program.py"), str(state_file), *arguments]
        self.process = subprocess.Popen(argv, cwd=ROOT)

    def until(self, condition: Callable[[dict[str, Any]], object], what: str, within_s: float = 200) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while True:
            state = json.loads(self.state_file.read_text()) if self.state_file.exists() else {}
            if state and condition(state):
                return state
            assert self.process.poll() is None, f"the window ended before {what}"
            assert time.monotonic() < deadline, f"no {what} in {within_s} s: {state}"
            time.sleep(0.05)

    def click(self, name: str) -> None:
        state = self.until(lambda state: name in state["enabled"] and name in state["buttons"], f"button {name}")
        click_at(*state["buttons"][name])


def test_demo_run_survives_closed_and_killed_windows(preferences: Path, tmp_path: Path) -> None:
    """Train; kill -9 the window; reopen and sample; close and leave running; reopen and stop while it samples."""
    make_demo_data(tmp_path / "demo", count=40)
    demo = load_preset("demo")
    concept = demo.concepts[0].model_copy(update={"path": str(tmp_path / "demo")})
    changes = {"runs_dir": str(tmp_path / "runs"), "cache_dir": str(tmp_path / "cache"), "concepts": (concept,)}
    short = {
        "max_steps": 3000,
        "epochs": 100_000,
        "backup_every": "never",
        "sample_every": "never",
        "tensorboard": False,
    }
    samples = {"samples": demo.samples[:2] * 100}
    file = tmp_path / "demo.json"
    save_config(type(demo).model_validate(demo.model_copy(update={**changes, **samples}).model_dump() | short), file)

    first = OtherWindow(tmp_path / "first", "--config", str(file))
    first.until(lambda state: state["config"] == str(file), "the config")
    first.click("train")
    state = first.until(lambda state: state["status"] == "training", "training")
    assert not state["torch"]
    folder = RunFolder(Path(state["run"]))
    first.process.kill()
    first.process.wait()
    count = len(read_events(folder.events_file))
    until(lambda: len(read_events(folder.events_file)) > count + 5, "the run going on without its window")

    second = OtherWindow(tmp_path / "second", "--config", str(file))
    second.until(
        lambda state: state["run"] == str(folder.path) and state["status"] == "training", "the run found again"
    )
    second.click("sample")
    until(lambda: sum(event["type"] == "sample" for event in read_events(folder.events_file)) >= 2, "samples")
    second.until(lambda state: "train" not in state["enabled"], "a disabled Train")
    subprocess.run(["xdotool", "key", "ctrl+q"], check=True)
    second.until(lambda state: state["dialogs"], "the question")
    time.sleep(0.3)
    subprocess.run(["xdotool", "key", "Return"], check=True)  # leave it running
    assert second.process.wait(30) == 0
    assert find_launcher(folder) is not None

    third = OtherWindow(tmp_path / "third", "--run", str(folder.path))
    third.until(lambda state: "stop" in state["enabled"], "the named run")
    third.click("stop")
    third.until(lambda state: state["status"] == "stopped", "the end")
    events = read_events(folder.events_file)
    assert (events[-1]["type"], events[-1]["reason"]) == ("finished", "stopped")
    drawn = sum(event["type"] == "sample" for event in events)
    assert 2 <= drawn < 200, "the remaining samples are left out"
    subprocess.run(["xdotool", "key", "ctrl+q"], check=True)
    assert third.process.wait(30) == 0, "nothing to ask"


def test_failed_run_shows_cause_and_log_line(preferences: Path, images: Path, tmp_path: Path) -> None:
    options = {"slow_step_s": 0.01, "faults": ["error:0:4"]}
    folder = create_run(tiny(images, tmp_path, run_name="bad", family_options=options))
    process = launch(folder)
    driven = Driven(run_folder=folder.path)
    try:
        driven.until(lambda: driven.status() == "failed", "failure")
        process.wait(30)
        driven.window.show_section("monitor")
        section = driven.window.sections["monitor"]
        driven.until(section.banner.winfo_ismapped, "banner")
        assert "a mistake in the family's own code" in section._banner_title.cget("text")
        section.show_log(section._problem)
        log = section.pages["log"]
        driven.until(lambda: log.lines.selection is not None, "the line")
        line = log.lines.lines[log.lines.selection[0]]
        assert line.source == "0"
        assert "a mistake in the family's own code" in line.text or "Traceback" in line.text
        driven.until(driven.window.run_bar.buttons.resume.winfo_ismapped, "Resume")
        os.kill(os.getpid(), signal.SIGCHLD)  # as at the end of any child process; it must be harmless
        driven.live(0.2)
    finally:
        driven.close()
