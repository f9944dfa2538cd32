"""A program of the window's, in a process of its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from app.child_program import ChildProgram
from app.tools.job import ModelJob
from app.tools.line_program import LineProgram

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT between processes")

SLEEP = """
import time
print("ready", flush=True)
time.sleep(60)
"""


def test_stop_ends_it_also_if_the_window_ignores_interrupts(tmp_path: Path) -> None:
    """As it does when a shell has started it in the background: what it starts would ignore them, too."""
    script = tmp_path / "sleep.py"
    script.write_text(SLEEP)
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = ChildProgram(script, [], tmp_path / "output.txt")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
    try:
        while "ready" not in child.output():
            assert child.is_running, child.output()
        child.stop()
        child.process.wait(30)
        assert "KeyboardInterrupt" in child.output()
    finally:
        child.process.kill()
        child.process.wait()


def test_what_is_killed_has_failed(tmp_path: Path) -> None:
    """Its answers so far, such as none, are not the result."""
    said = "The program was ended by signal 9. Perhaps the computer ran out of memory."
    program = LineProgram("modules.data.index.near_duplicates", [str(tmp_path), "4"])
    assert program.error == ""
    program._process.kill()
    program._process.wait()
    program.read()
    assert program.error == said
    program.close()
    job = ModelJob(["--help"], tmp_path / "out")
    job._child.process.kill()
    job._child.process.wait()
    assert job.result().sentence == f"Nothing was written. {said}"
    job.close()
