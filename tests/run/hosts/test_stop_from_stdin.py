"""A program that was started over ssh ends at what comes through its standard input."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.runs import ROOT, environment

# Ends by itself only if nothing stops it.
WAITS = """
import sys, time
from modules.run.hosts.stop_from_stdin import stop_at_line_of_stdin
stop_at_line_of_stdin(also_at_end=sys.argv[1] == "preflight")
time.sleep(float(sys.argv[2]))
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sshd is started on Linux and macOS only")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sent", "seconds", "code"),
    [("run", "stop\n", 60, -signal.SIGINT), ("preflight", "", 60, -signal.SIGINT), ("run", "", 0.5, 0)],
)
def test_a_line_stops_a_run_and_the_end_of_the_input_a_preflight(
    kind: str, sent: str, seconds: float, code: int
) -> None:
    """A run goes on without the connection, of a preflight nobody would see the result."""
    argv = [sys.executable, "-c", WAITS, kind, str(seconds)]
    done = subprocess.run(argv, input=sent, cwd=ROOT, env=environment(), text=True, stderr=subprocess.DEVNULL)
    assert done.returncode == code
