"""All processes started from one supervisor, found by a token in their environment."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psutil

START_TOKEN: Final = "TANDEM_START"
_REMEMBER_OTHERS_S: Final = 30.0
_DIE_WITHIN_S: Final = 10.0
_WAKE_WITHIN_S: Final = 1.0


class ProcessTree:
    """The processes that inherited a token: torchrun, ranks and loader workers, orphans included.

    torchrun starts each rank in its own session, and orphans keep no trace of their ancestors, so neither a
    process group nor parent IDs would find them all.
    """

    def __init__(self, token: str | None = None) -> None:
        """A new tree, or with its `token` one that another process started."""
        self._token = token or secrets.token_hex(8)
        self._others: set[int] = set()  # processes that were not in the tree
        self._others_until = 0.0

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the first process must get."""
        return {START_TOKEN: self._token}

    def processes(self) -> list[psutil.Process]:
        """The live processes of this tree, excluding this one."""
        others = (process for process in psutil.process_iter() if process.pid != os.getpid())
        return [process for process in others if self._contains(process)]

    def known_processes(self) -> list[psutil.Process]:
        """As `processes`, at a fraction of the cost: others are looked at again after half a minute only.

        For what is asked every few seconds and may miss a process whose number another one had a moment ago.
        """
        now = time.monotonic()
        if now >= self._others_until:
            self._others, self._others_until = {os.getpid()}, now + _REMEMBER_OTHERS_S
        candidates = [each for each in psutil.process_iter() if each.pid not in self._others]
        members = [each for each in candidates if self._contains(each)]
        self._others.update({each.pid for each in candidates} - {each.pid for each in members})
        return members

    def kill(self, *, spare: Iterable[int] = ()) -> list[int]:
        """Kill all processes except `spare`; returns the IDs of those killed."""
        spared = set(spare)
        killed = []
        for process in self.processes():
            if process.pid not in spared:
                with suppress(psutil.Error):
                    process.kill()
                    killed.append(process.pid)
        return killed

    def terminate(self, *, patience_s: float) -> None:
        """Wait up to `patience_s` for the processes to exit, then kill until none is left."""
        psutil.wait_procs(self.processes(), timeout=patience_s)
        started = time.monotonic()
        while (killed := self.kill()) and (seconds := time.monotonic() - started) < _DIE_WITHIN_S:
            if seconds > _WAKE_WITHIN_S and all(map(waits_for_a_disk, killed)):
                break
            time.sleep(0.05)

    def _contains(self, process: psutil.Process) -> bool:
        try:
            return env_var(process, START_TOKEN) == self._token and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False  # it has just ended


def waits_for_a_disk(pid: int) -> bool:
    """Whether a process is in uninterruptible sleep (state D), in which it cannot even be killed."""
    try:
        return str(psutil.Process(pid).status()) == psutil.STATUS_DISK_SLEEP
    except psutil.Error:
        return False


def tree_tokens(processes: Iterable[psutil.Process]) -> set[str]:
    """The tokens of the trees that these processes belong to."""
    found = set()
    for process in processes:
        with suppress(psutil.Error, OSError):
            found.add(process.environ().get(START_TOKEN, ""))
    return found - {""}


def env_var(process: psutil.Process, name: str) -> str:
    """The value of a variable when the process started; empty if unset or the process has ended."""
    try:
        return process.environ().get(name, "")
    except (psutil.Error, OSError):
        return ""


def signal_children(pid: int, signal_number: signal.Signals) -> None:
    """Send a signal to the children of a process, such as the ranks under torchrun, but not to the process itself."""
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children():
            with suppress(psutil.Error):
                process.send_signal(signal_number)


def kill_family(process: psutil.Process) -> None:
    """Kill a process, perhaps this one, and all that it started: descendants, and orphans of runs among them."""
    with suppress(psutil.Error):
        members = process.children(recursive=True)
        tokens = tree_tokens(members) - {os.environ.get(START_TOKEN)}
        if process.pid != os.getpid():
            process.kill()
        for member in members:
            with suppress(psutil.Error):
                member.kill()
        for token in tokens:
            ProcessTree(token).kill()
    if process.pid == os.getpid():
        process.kill()
