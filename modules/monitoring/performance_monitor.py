"""Collects step times and device readings of all ranks, and warns of each cause of slow training once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from modules.monitoring.device_log import Reading
from modules.monitoring.performance_rules import RULES, Observation
from modules.monitoring.step_times import RankStepTimes, typical_step

WINDOW: Final = 15  # steps between two checks
MIN_SYNCS: Final = 5  # in a window: fast steps come several at a time, and one hiccup must not make the median
WARM_UP: Final = 5  # steps at the start that are not counted
SURE_EXCESS: Final = 2.0  # over a rule's threshold: warned of after one window
LASTING: Final = 6  # windows in a row, after which less than that is warned of: other programs come and go
_READINGS: Final = 5  # of each rank, the latest


class PerformanceMonitor:
    """Applies the RULES to what is typical of the last steps; memory does not grow with their number."""

    def __init__(self, loader_workers: int) -> None:
        self._loader_workers = loader_workers
        self.devices: Sequence[str] = ()  # of all ranks, as in the `started` event
        self._collected: list[Sequence[RankStepTimes]] = []
        self._readings: deque[Mapping[int, Reading]] = deque(maxlen=_READINGS)
        self._steps = -WARM_UP  # since the last check
        self._warned: set[str] = set()
        self._in_a_row: dict[str, int] = {}  # windows with a finding of each rule

    def update(
        self, times: Sequence[RankStepTimes], steps: int = 1, readings: Mapping[int, Reading] | None = None
    ) -> list[str]:
        """Add the times of one step, or those typical of several `steps`, and the latest readings by rank.

        Returns new warnings. The same readings, which are newer every two seconds only, count once.
        """
        self._steps += steps
        if readings and (not self._readings or readings is not self._readings[-1]):
            self._readings.append(readings)
        if self._steps <= 0:
            return []
        self._collected.append(times)
        if self._steps < WINDOW or len(self._collected) < MIN_SYNCS:
            return []
        typical = [typical_step(rank) for rank in zip(*self._collected, strict=True)]
        self._collected.clear()
        self._steps = 0
        by_rank = {each.rank: [found[each.rank] for found in self._readings if each.rank in found] for each in typical}
        seen = Observation(typical, self._loader_workers, by_rank, self.devices)
        return self._warnings(seen)

    def _warnings(self, seen: Observation) -> list[str]:
        """What is found for the first time and either clear or lasting."""
        texts = []
        for name, rule in RULES.items():
            finding = None if name in self._warned else rule(seen)
            self._in_a_row[name] = 0 if finding is None else self._in_a_row.get(name, 0) + 1
            if finding is not None and (finding.excess >= SURE_EXCESS or self._in_a_row[name] >= LASTING):
                self._warned.add(name)
                texts.append(finding.text)
        return texts
