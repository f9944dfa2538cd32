"""Runs that the window starts, follows, leaves and finds again: real trainings, real windows, real kills."""

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

from app.run_control import RunControl, launch, live_runs, make_run, next_name, taken_name
from modules.config import load_preset, save_config
from modules.run import RunFolder, read_events
from modules.run.launcher_mark import launcher_of
from scripts.make_demo_data import make_demo_data
from tests.app.run_driving import ROOT, Driven, click_at, tiny

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The trainings share few cores; none of them outlives its test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    for process in psutil.process_iter():
        try:
            if any(str(tmp_path) in word for word in process.cmdline()) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def until(condition: Callable[[], object], what: str, within_s: float = 90) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {within_s} s"
        time.sleep(0.02)


def steps(control: RunControl) -> int:
    with control.view.lock:
        return 0 if control.view.step is None else control.view.step.step


def rank_0(folder: RunFolder) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            argv = process.cmdline()
        except psutil.Error:
            continue
        if "--run_folder" in argv and str(folder.path) in argv:
            return process
    raise AssertionError("no rank 0")


def test_the_life_of_a_run_without_any_window(pictures: Path, tmp_path: Path) -> None:
    """Start, back up, sample, save, a killed launcher, an end at once, resume, a hang, stop: one folder."""
    config = tiny(pictures, tmp_path, run_name="cats")
    assert taken_name(config) is None
    folder = make_run(config)
    control = RunControl(folder.path, launch(folder))
    assert control.is_alive, "from the very first moment"
    assert live_runs(tmp_path / "runs") == [folder.path]
    until(lambda: control.status().kind == "training" and steps(control) > 3, "training")
    assert taken_name(config) == folder
    assert next_name(folder) == "cats-2"
    for name in ("backup", "sample", "save"):
        assert control.ask(name) == ""
        assert control.waits_for(name)
    until(lambda: control.view.backup_step and len(control.view.samples) == 2, "backup and samples")
    until(lambda: (folder.model_dir / "tandem.json").exists(), "saved model")
    until(lambda: not any(control.waits_for(name) for name in ("backup", "sample", "save")), "an answer")

    launcher = launcher_of(folder)
    assert launcher is not None
    launcher.process.kill()
    before = steps(control)
    until(lambda: steps(control) > before + 20, "steps without a launcher")
    assert control.status().kind == "training"
    control.end_at_once()
    until(lambda: not control.is_alive, "end")
    status = control.status()
    assert (status.kind, status.can_resume) == ("killed", True)
    assert status.problem is not None
    assert f"step {control.view.backup_step}" in status.problem.advice
    control.leave()

    control = RunControl(folder.path, launch(folder, resume=True))
    until(lambda: control.status().kind == "training" and control.has_begun, "going on")
    assert steps(control) <= before + 25, "from the backup"
    worker = rank_0(folder)
    worker.suspend()  # a hang: it holds the lock, but hears nothing
    assert control.stop() == ""
    until(lambda: control.status().kind == "stopping", "stopping")
    time.sleep(0.5)
    assert control.is_alive
    control.end_at_once()
    until(lambda: not control.is_alive, "end")
    assert not worker.is_running()
    assert control.status().kind == "terminated"
    assert live_runs(tmp_path / "runs") == []
    control.leave()


def test_a_stop_before_the_run_can_listen_is_not_lost(pictures: Path, tmp_path: Path) -> None:
    folder = make_run(tiny(pictures, tmp_path, run_name="early", family_options={"slow_encode_s": 0.2}))
    control = RunControl(folder.path, launch(folder))
    assert control.stop() == ""
    until(lambda: control.insist() is None and not control.is_alive, "end")
    assert control.status().kind == "stopped"
    control.leave()


def test_a_run_whose_folder_was_deleted_can_still_be_ended(pictures: Path, tmp_path: Path) -> None:
    folder = make_run(tiny(pictures, tmp_path, run_name="gone"))
    control = RunControl(folder.path, launch(folder))
    until(lambda: control.status().kind == "training" and steps(control) > 3, "training")
    worker = rank_0(folder)
    shutil.rmtree(folder.path)
    # the trainer makes it anew, maybe before the window has looked
    until(lambda: control.status().kind == "missing" or folder.path.exists(), "notice")
    if control.is_alive:  # or it has ended by itself, for want of a folder
        control.end_at_once()
    until(lambda: not control.is_alive and not (worker.is_running() and worker.status() != "zombie"), "end")
    control.leave()


class OtherWindow:
    """A window in a process of its own, driven by xdotool."""

    def __init__(self, told: Path, *arguments: str) -> None:
        self.told = told
        told.unlink(missing_ok=True)
        argv = [sys.executable, str(ROOT / "tests" / "app" / "window_program.py"), str(told), *arguments]
        self.process = subprocess.Popen(argv, cwd=ROOT)

    def until(self, condition: Callable[[dict[str, Any]], object], what: str, within_s: float = 90) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while True:
            said = json.loads(self.told.read_text()) if self.told.exists() else {}
            if said and condition(said):
                return said
            assert self.process.poll() is None, f"the window ended before {what}"
            assert time.monotonic() < deadline, f"no {what} in {within_s} s: {said}"
            time.sleep(0.05)

    def click(self, name: str) -> None:
        said = self.until(lambda said: name in said["enabled"] and name in said["buttons"], f"button {name}")
        click_at(*said["buttons"][name])


def test_the_demo_by_clicks_and_windows_that_come_and_go(preferences: Path, tmp_path: Path) -> None:
    """Train by a click; kill -9 of the window; found again, sampled; closed and left; found again, stopped."""
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
    samples = {"samples": demo.samples[:2]}
    file = tmp_path / "demo.json"
    save_config(type(demo).model_validate(demo.model_copy(update={**changes, **samples}).model_dump() | short), file)

    first = OtherWindow(tmp_path / "first", "--config", str(file))
    first.until(lambda said: said["config"] == str(file), "the config")
    first.click("train")
    said = first.until(lambda said: said["status"] == "training", "training")
    assert not said["torch"]
    folder = RunFolder(Path(said["run"]))
    first.process.kill()
    first.process.wait()
    count = len(read_events(folder.events_file))
    until(lambda: len(read_events(folder.events_file)) > count + 5, "the run going on without its window")

    second = OtherWindow(tmp_path / "second", "--config", str(file))
    second.until(lambda said: said["run"] == str(folder.path) and said["status"] == "training", "the run found again")
    second.click("sample")
    until(lambda: sum(event["type"] == "sample" for event in read_events(folder.events_file)) >= 2, "samples")
    second.until(lambda said: "train" not in said["enabled"], "a disabled Train")
    subprocess.run(["xdotool", "key", "ctrl+q"], check=True)
    second.until(lambda said: said["dialogs"], "the question")
    time.sleep(0.3)
    subprocess.run(["xdotool", "key", "Return"], check=True)  # leave it running
    assert second.process.wait(30) == 0
    assert launcher_of(folder) is not None

    third = OtherWindow(tmp_path / "third", "--run", str(folder.path))
    third.until(lambda said: said["status"] == "training", "the named run")
    third.click("stop")
    third.until(lambda said: said["status"] in {"stopped", "finished"}, "the end")
    last = read_events(folder.events_file)[-1]
    assert (last["type"], last["reason"]) in {("finished", "stopped"), ("finished", "finished")}
    subprocess.run(["xdotool", "key", "ctrl+q"], check=True)
    assert third.process.wait(30) == 0, "nothing to ask"


def test_a_failed_run_is_shown_with_its_cause_and_the_log_at_the_right_line(
    preferences: Path, pictures: Path, tmp_path: Path
) -> None:
    options = {"slow_step_s": 0.01, "faults": ["error:0:4"]}
    folder = make_run(tiny(pictures, tmp_path, run_name="bad", family_options=options))
    process = launch(folder)
    driven = Driven(run_folder=folder.path)
    try:
        driven.until(lambda: driven.status() == "failed", "failure")
        process.wait(30)
        driven.window.show_section("monitor")
        section = driven.window.sections["monitor"]
        driven.until(section.banner.winfo_ismapped, "banner")
        assert "a mistake in the family's own code" in section._banner_words.cget("text")
        section.show_log(section._problem)
        log = section.pages["log"]
        driven.until(lambda: log.lines.chosen is not None, "the line")
        line = log.lines.lines[log.lines.chosen[0]]
        assert line.source == "0"
        assert "a mistake in the family's own code" in line.text or "Traceback" in line.text
        driven.until(driven.window.run_bar.resume.winfo_ismapped, "Resume")
        os.kill(os.getpid(), signal.SIGCHLD)  # as any child's end does; nothing may stumble over it
        driven.live(0.2)
    finally:
        driven.close()
