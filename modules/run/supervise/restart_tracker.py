"""Tracks torchrun's restarts of the ranks after failures."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from modules.machine import hostname
from modules.run.folder.error_rules import advice_for_kind
from modules.run.folder.failures import Failure
from modules.run.format_duration import in_words
from modules.run.supervise.process_tree import ProcessTree, env_var

_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
_OPTION = "--max-restarts="
# A rank that is alone on its machine has no other rank there that could check it.
_SUSPENDED_AFTER_S = 12.0


class RestartTracker:
    """The number of restarts so far, and the processes of the current attempt."""

    def __init__(self, process_tree: ProcessTree, argv: Sequence[str]) -> None:
        self._tree = process_tree
        self._suspended_since: dict[int, float] = {}
        self._was_suspended = False
        self.restart_count = 0
        options = [text.removeprefix(_OPTION) for text in argv if text.startswith(_OPTION)]
        self.max_restarts = int(options[0]) if options and options[0].isdecimal() else 0

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now would end the run."""
        return self.restart_count >= self.max_restarts

    def ranks_started_at(self, launcher: int) -> float | None:
        """When torchrun (process `launcher`) started the current ranks; None while it waits for other machines."""
        with suppress(psutil.Error):
            return max((each.create_time() for each in psutil.Process(launcher).children()), default=None)
        return None

    def detect_restart(self) -> bool:
        """Whether torchrun has restarted the ranks since the last call."""
        newest = max(
            (int(env_var(each, _RESTART_COUNT) or 0) for each in self._tree.processes()),
            default=0,
        )
        is_newer, self.restart_count = newest > self.restart_count, max(newest, self.restart_count)
        return is_newer

    def kill_ranks(self) -> list[int]:
        """Kill the current ranks and their child processes, but not torchrun; returns their process IDs."""
        ranks = [each for each in self._tree.processes() if env_var(each, _RESTART_COUNT) == str(self.restart_count)]
        for process in ranks:
            with suppress(psutil.Error):
                process.kill()
        return [process.pid for process in ranks]

    def suspended_rank(self, launcher: int, first_rank: int) -> Failure | None:
        """The failure of a rank that has been suspended for long; the others wait for it in vain, or are, too.

        Ranks that process `launcher` has started without torchrun do not tell their numbers: one of several is noticed
        by the others, so here only all of them count, as `first_rank`.
        """
        now = time.monotonic()
        processes = self._tree.known_processes()
        suspended = {each.pid: each for each in processes if _is_suspended(each)}
        self._suspended_since = {pid: self._suspended_since.get(pid, now) for pid in suspended}
        spawned = [each.pid for each in processes if _is_spawned(each, launcher)]
        for pid, process in suspended.items():
            rank = env_var(process, "RANK") if env_var(process, _RESTART_COUNT) else ""
            if pid in spawned and suspended.keys() >= set(spawned):
                rank = str(first_rank)
            seconds = now - self._suspended_since[pid]
            if rank.isdecimal() and seconds > _SUSPENDED_AFTER_S:
                text = (
                    f"The process of rank {rank} ({pid} on {hostname()}) is stopped (state T) for {in_words(seconds)}."
                )
                return Failure(int(rank), hostname(), "stopped", text, advice_for_kind("stopped"))
        return None

    def is_alone_and_suspended(self, process: int) -> bool:
        """Whether the only process of a run has just become one that has been suspended for long."""
        since = self._suspended_since.get(process, math.inf)
        is_long = time.monotonic() - since > _SUSPENDED_AFTER_S
        is_new, self._was_suspended = is_long and not self._was_suspended, is_long
        return is_new


def _is_spawned(process: psutil.Process, launcher: int) -> bool:
    try:
        return process.ppid() == launcher and any("spawn_main" in text for text in process.cmdline())
    except psutil.Error:
        return False


def _is_suspended(process: psutil.Process) -> bool:
    try:
        return str(process.status()) in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False
