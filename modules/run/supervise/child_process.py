"""The process that a supervisor starts, and waiting for its end without waking up more often than needed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from modules.run.launch.plan import TORCHRUN
from modules.run.supervise.signals import pause_signal_blocked


def start_child(argv: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a new session, with its error output in `log`.

    The terminal's Ctrl-C must reach only the supervisor, because torchrun would end the ranks before they have made a
    backup.
    """
    new_group = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))  # Windows has no sessions
    with pause_signal_blocked():
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stderr=log,
            env=environment,
            start_new_session=sys.platform != "win32",
            creationflags=new_group,
        )


def launcher_name(argv: Sequence[str]) -> str:
    """What starts the ranks, if that is a process of its own; empty if the command is the only rank."""
    if str(TORCHRUN) in argv:
        return "torchrun"
    return "spawn" if "--spawn" in argv else ""


class ExitWaiter:
    """Waits for the end of a process. `Popen.wait` with a timeout wakes up 70 times a second, this once per call."""

    def __init__(self, child: subprocess.Popen[bytes], descriptor: int | None) -> None:
        self._child, self._descriptor = child, descriptor

    def wait(self, timeout_s: float) -> None:
        """Return when the process has ended, or after `timeout_s`."""
        if self._descriptor is not None:
            select.select([self._descriptor], [], [], timeout_s)
            return
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)


@contextmanager
def exit_waiter(child: subprocess.Popen[bytes]) -> Iterator[ExitWaiter]:
    """Where the system has no process descriptors (macOS, Windows, Linux before 5.3), it polls."""
    descriptor = None
    if os.name != "nt":
        with suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(child.pid)
    try:
        yield ExitWaiter(child, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
