"""Terminal output: a progress bar on a terminal, plain lines in a file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

from modules.monitoring.report import Throughput
from modules.monitoring.terminal import PlainTerminal, open_terminal
from modules.run.console import echo, warn
from modules.run.format_progress import BYTES, format_progress
from tests.runs import ROOT, environment

PROGRAM = """
from modules.monitoring.terminal import open_terminal
t = open_terminal()
t.phase("caching", 1, 2); t.phase("caching", 2, 2); t.line("hello")
t.start(5, 10)
for n in range(6, 11): t.step(n, f"loss {n}")
t.phase("sampling", 0, 1); t.line("between"); t.close(); t.close(); t.line("after")
print("end")
"""


def test_plain_lines_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainTerminal()
    lines.phase("caching", 1, 2)
    lines.phase("caching", 2, 2)
    lines.phase("downloading", 1_500_000, 6_940_000_000, BYTES)
    lines.phase("downloading", 6_940_000_000, 6_940_000_000, BYTES)
    lines.start(0, 3)
    for step in (1, 2, 3):
        lines.step(step, "loss 0.5")
    lines.line("done")
    lines.close()
    assert capsys.readouterr().out == "caching: 2 of 2\ndownloading: 6.9 of 6.9 GB\nstep 3 of 3, loss 0.5\ndone\n"


def test_counts_and_bytes_are_formatted_by_size() -> None:
    assert format_progress(3, 9) == "3 of 9"
    assert format_progress(120_000_000, 6_940_000_000, BYTES) == "0.1 of 6.9 GB"
    assert format_progress(500, 382_400, BYTES) == "0.5 of 382.4 kB"
    assert format_progress(3, 9, BYTES) == "3 of 9 bytes"


def read_all(terminal: int) -> str:
    """All that was written to a pseudo-terminal whose other side has been closed, or will be."""
    output = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # raised on Linux when the other side is closed
            break
        if not part:
            break
        output += part
    os.close(terminal)
    return output.decode()


@pytest.mark.slow
def test_terminal_shows_one_bar_with_notes_above_it() -> None:
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 100))
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=inner, env=environment(), cwd=ROOT)
    os.close(inner)
    text = read_all(outer)
    assert program.wait(60) == 0, text
    assert "caching: 2 of 2" in text
    assert "10/10 steps" in text
    assert "loss 10" in text
    assert "between" in text
    assert text.rstrip().endswith("end")


def test_throughput_is_of_the_last_steps_without_the_first() -> None:
    throughput = Throughput()
    throughput.add(8, 100.0)
    assert throughput.samples_per_s() == 0
    assert throughput.eta_s(8) is None
    for step in range(2, 5):
        throughput.add(8 * step, 0.5)
    assert throughput.samples_per_s() == pytest.approx(16)
    assert throughput.eta_s(32) == pytest.approx(2)


@pytest.mark.slow
def test_closed_output_does_not_end_the_run() -> None:
    """As in `train.py | head -1`: every later line fails, and so would Python's final flush."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=write, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=environment()
    )
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


def test_a_terminal_shows_texts_and_obeys_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of an image may hold an escape code; the bar and the counter still rewrite their line."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 100))
    with os.fdopen(inner, "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        terminal = open_terminal()
        terminal.phase("caching", 1, 2)
        terminal.line("before\x1b[2J\r.png")
        terminal.start(0, 2)
        terminal.line("line\x1b]0;x\x07.png:\n  in two lines")
        echo("echo\x9b2J.png:\r\n  in two lines")
        warn("warn\x1b[2J.png")
        terminal.phase("saving", None, None)
        terminal.close()
        monkeypatch.undo()
    shown = read_all(outer)
    assert "before\\x1b[2J\\r.png" in shown
    assert "line\\x1b]0;x\\x07.png:\r\n  in two lines" in shown
    assert "echo\\x9b2J.png:\r\n  in two lines" in shown
    assert "\r\x1b[Kwarn\\x1b[2J.png" in shown, "a line of its own, not after the bar"
    assert "saving" in shown
    assert "saving" not in shown.splitlines()[-1].rpartition("\r")[2], "the bar that is left"
    assert not [code for code in ("\x1b[2J", "\x1b]", "\x07", "\x9b") if code in shown]
    assert shown.startswith("\rcaching: 1 of 2")
    assert "0/2 steps" in shown
