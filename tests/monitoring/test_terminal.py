"""What a person sees: a bar on a terminal, plain lines in a file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

from modules.monitoring.terminal import Lines
from modules.monitoring.throughput import Throughput
from modules.run.amounts import BYTES, counted
from tests.runs import ROOT, environment

PROGRAM = """
from modules.monitoring.terminal import terminal
t = terminal()
t.phase("caching", 1, 2); t.phase("caching", 2, 2); t.line("hello")
t.begin(5, 10)
for n in range(6, 11): t.step(n, f"loss {n}")
t.phase("sampling", 0, 1); t.line("between"); t.close(); t.close(); t.line("after")
print("end")
"""


def test_lines_have_no_control_characters_and_tell_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.phase("caching", 1, 2)
    lines.phase("caching", 2, 2)
    lines.phase("downloading", 1_500_000, 6_940_000_000, BYTES)
    lines.phase("downloading", 6_940_000_000, 6_940_000_000, BYTES)
    lines.begin(0, 3)
    for step in (1, 2, 3):
        lines.step(step, "loss 0.5")
    lines.line("done")
    lines.close()
    assert capsys.readouterr().out == "caching: 2 of 2\ndownloading: 6.9 of 6.9 GB\nstep 3 of 3, loss 0.5\ndone\n"


def test_amounts_are_told_in_a_unit_of_their_size() -> None:
    assert counted(3, 9) == "3 of 9"
    assert counted(120_000_000, 6_940_000_000, BYTES) == "0.1 of 6.9 GB"
    assert counted(500, 382_400, BYTES) == "0.5 of 382.4 kB"
    assert counted(3, 9, BYTES) == "3 of 9 bytes"


@pytest.mark.slow
def test_on_a_terminal_there_is_one_bar_and_notes_stand_above_it() -> None:
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 100))
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=inner, env=environment(), cwd=ROOT)
    os.close(inner)
    said = b""
    while True:
        try:
            part = os.read(outer, 4096)
        except OSError:  # Linux says so when the other side is closed
            break
        if not part:
            break
        said += part
    os.close(outer)
    text = said.decode()
    assert program.wait(60) == 0, text
    assert "caching: 2 of 2" in text
    assert "10/10 steps" in text
    assert "loss 10" in text
    assert "between" in text
    assert text.rstrip().endswith("end")


def test_the_speed_is_that_of_the_last_steps_and_the_first_step_does_not_count() -> None:
    throughput = Throughput()
    throughput.add(8, 100.0)
    assert throughput.samples_per_s() == 0
    assert throughput.eta_s(8) is None
    for step in range(2, 5):
        throughput.add(8 * step, 0.5)
    assert throughput.samples_per_s() == pytest.approx(16)
    assert throughput.eta_s(32) == pytest.approx(2)


@pytest.mark.slow
def test_a_reader_who_leaves_does_not_end_the_run() -> None:
    """As in `train.py | head -1`: every later line fails, and so would Python's last flush."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=write, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=environment()
    )
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
