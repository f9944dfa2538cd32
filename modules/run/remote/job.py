"""The Slurm job of a run on a cluster, as its login node tells of it: anything may come from there."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import Field

from modules.files import Record, printable
from modules.run.remote.slurm_jobs import WAITS

_Text = Annotated[str, Field(max_length=300)]


class Job(Record):
    """What Slurm says of a job: its state and the reason in Slurm's words, its place among those that wait for the same
    partition, when it may start (seconds since 1970), its nodes; `fault` is why Slurm does not answer."""

    id: Annotated[str, Field(pattern=r"^\d{1,12}$")]
    state: _Text
    is_alive: bool
    reason: _Text = ""
    position: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    starts: Annotated[int, Field(ge=0, le=1 << 33)] | None = None
    nodes: _Text = ""
    fault: Annotated[str, Field(max_length=3000)] = ""

    @property
    def runs(self) -> bool:
        """Whether its processes have been started."""
        return self.is_alive and not self.fault and self.state not in WAITS

    def __str__(self) -> str:
        if self.fault:
            return printable(f"Slurm does not tell of job {self.id} now: {self.fault}", 500)
        if not self.is_alive:
            return printable(f"Job {self.id} has ended: {self.state}.")
        if self.runs:
            return printable(f"Job {self.id} runs{f' on {self.nodes}' if self.nodes else ''}.")
        place = [_ordinal(self.position)] if self.position else []
        why = ", ".join([*place, self.reason or self.state])
        at = f"; starts about {_clock(self.starts)}" if self.starts and self.starts > time.time() else ""
        return printable(f"Job {self.id} waits in the queue: {why}{at}.")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ending}"


def _clock(at_s: int) -> str:
    """The time here; the day as well if that is another one."""
    at, now = time.localtime(at_s), time.localtime()
    return time.strftime("%H:%M" if at[:3] == now[:3] else "%a %Y-%m-%d %H:%M", at)
