"""The ranks of one start after another: torchrun may begin anew after a failure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from modules.machine import hostname
from modules.run.explanations import explain_kind
from modules.run.failures import Failure
from modules.run.process_family import ProcessFamily, variable

_COUNT = "TORCHELASTIC_RESTART_COUNT"
_OPTION = "--max-restarts="
# A rank that is the only one of its machine has no neighbour that could look at it.
_STOPPED_AFTER_S = 12.0


class Generations:
    """Which start of the ranks is under way, and their processes."""

    def __init__(self, family: ProcessFamily, argv: Sequence[str]) -> None:
        self._family = family
        self._stopped: dict[int, float] = {}
        self.number = 0
        options = [text.removeprefix(_OPTION) for text in argv if text.startswith(_OPTION)]
        self.allowed = int(options[0]) if options and options[0].isdecimal() else 0

    @property
    def is_last(self) -> bool:
        """Whether a failure now is the end."""
        return self.number >= self.allowed

    def born_at(self, launcher: int) -> float | None:
        """When torchrun, of this number, started the ranks that run now; None while it waits for other machines."""
        with suppress(psutil.Error):
            return max((each.create_time() for each in psutil.Process(launcher).children()), default=None)
        return None

    def has_begun_anew(self) -> bool:
        """Whether there are ranks of a later start than at the last call."""
        newest = max((int(variable(each, _COUNT) or 0) for each in self._family.members()), default=0)
        is_newer, self.number = newest > self.number, max(newest, self.number)
        return is_newer

    def kill_ranks(self) -> list[int]:
        """Kill the ranks of this start and what they have started, but not torchrun; returns their numbers."""
        ranks = [each for each in self._family.members() if variable(each, _COUNT) == str(self.number)]
        for process in ranks:
            with suppress(psutil.Error):
                process.kill()
        return [process.pid for process in ranks]

    def stopped_rank(self) -> Failure | None:
        """A rank under torchrun that somebody has stopped, and not for a moment; the others wait for it in vain."""
        now = time.monotonic()
        stopped = [each for each in self._family.members() if variable(each, _COUNT) and _is_stopped(each)]
        self._stopped = {each.pid: self._stopped.get(each.pid, now) for each in stopped}
        for process in stopped:
            rank, seconds = variable(process, "RANK"), now - self._stopped[process.pid]
            if rank.isdecimal() and seconds > _STOPPED_AFTER_S:
                text = f"The process of rank {rank} ({process.pid} on {hostname()}) is stopped (state T) for "
                text += f"{seconds:.0f} s."
                return Failure(int(rank), hostname(), "stopped", text, explain_kind("stopped"))
        return None


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return str(process.status()) in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False
