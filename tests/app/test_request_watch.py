"""What the window says once a run has done what a button asked for, and when."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

from app.runs.control import RunControl
from app.runs.request_watch import RequestWatch
from modules.run import RunFolder
from tests.app.fake_runs import line, make_fake_run, step_event


def test_samples_are_ready_once_they_are_drawn_although_figures_come_late(tmp_path: Path) -> None:
    """The run takes a request some steps after those whose figures it has reported, and draws for a while."""
    folder = make_fake_run(tmp_path / "run", steps=10, ended=None)
    with subprocess.Popen(["sleep", "100"]) as launcher:
        control, watch = RunControl(folder.path, launcher), RequestWatch()
        try:
            wait_for_step(control, 10)
            assert control.request("sample") == ""
            assert watch.done(control) == ("", "")
            (folder.commands_dir / "sample").unlink()
            assert watch.done(control) == ("", "")
            add(folder, figures(12), phase("sampling"))
            wait_for_step(control, 12)
            assert watch.done(control) == ("", "")
            sample = {"t": time.time(), "type": "sample", "step": 14, "file": "14-0.png", "prompt": "a pink star"}
            add(folder, sample, phase("training"), figures(14))
            wait_for_step(control, 14)
            assert watch.done(control) == ("sample", "Samples of step 14 are ready: click to see them.")
            assert watch.done(control) == ("", "")
            assert control.request("backup") == ""
            (folder.commands_dir / "backup").unlink()
            assert watch.done(control) == ("", "")
            add(folder, {"t": time.time(), "type": "backup", "step": 18, "path": "backup/step-000018"}, figures(16))
            wait_for_step(control, 16)
            assert watch.done(control) == ("backup", "Step 18 is backed up.")
        finally:
            control.detach()
            launcher.kill()


def phase(name: str) -> dict[str, object]:
    return {"t": time.time(), "type": "phase", "phase": name}


def figures(step: int) -> dict[str, object]:
    return step_event(step, time.time(), random.Random(step))


def add(folder: RunFolder, *events: dict[str, object]) -> None:
    with folder.events_file.open("a") as file:
        file.writelines(line(event) for event in events)


def wait_for_step(control: RunControl, step: int) -> None:
    deadline = time.monotonic() + 60
    while control.view.position != step:
        assert time.monotonic() < deadline, control.view.position
        time.sleep(0.01)
