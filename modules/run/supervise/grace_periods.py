"""How long the processes of a run may outlive its failure or its end before they are killed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from modules.run.hosts.measuring import passed_on

_NOTHING_TO_KEEP_S: Final = 5.0


@dataclass(frozen=True)
class GracePeriods:
    """In seconds."""

    failure_s: float = 8.0  # of the other ranks after a failure
    report_s: float = 15.0  # of torchrun after that, for its report, without which nobody knows the signal
    finish_s: float = 60.0  # of all processes after the `finished` event
    alone_s: float = 5.0  # of a torchrun whose ranks have all ended and which waits for other machines
    stop_s: float = math.inf  # of all processes after a request to stop: a run takes as long as its backup

    @classmethod
    def of_start(cls, environment: Mapping[str, str]) -> Self:
        """Those of a start: one that only measures may be in the middle of a large batch, and has nothing to keep."""
        return cls(stop_s=_NOTHING_TO_KEEP_S) if passed_on(environment) else cls()

    def deadline(self, failed_at: float | None, finished_at: float | None, alone_since: float | None) -> float:
        """The earliest end of those that have begun; infinite if none has."""
        begun = ((failed_at, self.failure_s), (finished_at, self.finish_s), (alone_since, self.alone_s))
        return min((at + grace_s for at, grace_s in begun if at is not None), default=math.inf)
