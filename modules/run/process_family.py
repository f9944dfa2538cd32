"""All processes that descend from one start, found by a mark in their environment."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psutil

_MARK: Final = "TANDEM_START"


class ProcessFamily:
    """The processes that inherited this mark: torchrun, ranks, loader workers, also without a parent.

    torchrun gives each rank a session of its own and orphans keep no trace of their ancestors, so neither a
    process group nor the parent's number would find them all.
    """

    def __init__(self, token: str | None = None) -> None:
        """A new family, or with its `token` one that somebody else started."""
        self._token = token or secrets.token_hex(8)

    @property
    def variables(self) -> dict[str, str]:
        """What the first process must have in its environment."""
        return {_MARK: self._token}

    def members(self) -> list[psutil.Process]:
        """The living processes of this family, this one excluded."""
        others = (process for process in psutil.process_iter() if process.pid != os.getpid())
        return [process for process in others if self._owns(process)]

    def kill(self, *, spare: Iterable[int] = ()) -> list[int]:
        """Kill all members but the spared; returns the numbers of the processes that were killed."""
        spared = set(spare)
        killed = []
        for process in self.members():
            if process.pid not in spared:
                with suppress(psutil.Error):
                    process.kill()
                    killed.append(process.pid)
        return killed

    def end(self, *, patience_s: float) -> None:
        """Leave nobody behind: wait `patience_s` for those on their way out, then kill until none is left."""
        psutil.wait_procs(self.members(), timeout=patience_s)
        give_up = time.monotonic() + 10
        while self.kill() and time.monotonic() < give_up:
            time.sleep(0.05)

    def _owns(self, process: psutil.Process) -> bool:
        try:
            return variable(process, _MARK) == self._token and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False  # it ended just now


def tokens_of(processes: Iterable[psutil.Process]) -> set[str]:
    """The families that these processes belong to."""
    found = set()
    for process in processes:
        with suppress(psutil.Error, OSError):
            found.add(process.environ().get(_MARK, ""))
    return found - {""}


def variable(process: psutil.Process, name: str) -> str:
    """What a variable was when the process began; empty where it was not set, or the process has ended."""
    try:
        return process.environ().get(name, "")
    except (psutil.Error, OSError):
        return ""


def signal_children(pid: int, signal_number: signal.Signals) -> None:
    """Pass a signal to the children of a process, such as the ranks under torchrun, but not to itself."""
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children():
            with suppress(psutil.Error):
                process.send_signal(signal_number)
