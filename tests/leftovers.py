"""Ends whatever the tests have started once pytest has ended, killed or not: `python -m tests.leftovers PID MARK`.

Daemons, training runs and their ranks have sessions of their own and outlive a pytest that is terminated. All inherit
a mark in their environment, by which a process beside pytest finds them.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "PYTEST_TANDEM_MARK"
_LOOK_EVERY_S = 0.2
_KILLED_WITHIN_S = 60.0  # one that waits for a disk cannot be killed


def watch_for_the_end(environ: MutableMapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Mark all that this process will start, and have it ended after this process.

    xdist's workers, and a pytest that a test starts, are marked already.
    """
    if MARK in environ or os.name != "posix":
        return None
    mark = environ[MARK] = secrets.token_hex(8)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.leftovers", str(os.getpid()), mark],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is not meant for it
    )


def main(parent: int, mark: str) -> None:
    """Wait for the end of `parent`, then kill until nothing is left."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    deadline = time.monotonic() + _KILLED_WITHIN_S
    while (left := _marked(mark)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(_LOOK_EVERY_S)


def _marked(mark: str) -> set[psutil.Process]:
    """The live processes with this mark, and their descendants, which may have none."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found |= {process, *process.children(recursive=True)}
    return {each for each in found if _is_alive(each)}


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
