"""Collects step times and device readings of all ranks, and warns of each cause of slow training once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from modules.monitoring.device_log import Reading
from modules.monitoring.performance_rules import RULES, Finding, Observation
from modules.monitoring.step_times import RankStepTimes, typical_step

WINDOW: Final = 15  # steps between two checks
WINDOW_S: Final = 0.6  # at least: steps of 5 ms, 15 of which a passing hiccup would fill
MIN_SYNCS: Final = 5  # in a window: fast steps come several at a time, and one hiccup must not make the median
WARM_UP: Final = 5  # steps at the start that are not counted
SURE_EXCESS: Final = 2.0  # over a rule's threshold: warned of after one window
LASTING: Final = 6  # windows in a row, after which less than that is warned of: other programs come and go
LASTING_S: Final = 3.0  # that both take at least, unless
NAMED_WITHIN: Final = 20  # steps show it from the start
_READINGS: Final = 5  # of each rank, the latest
_MIXED_READINGS: Final = 2  # after an interruption: the one made in it, and the one whose interval began in it


class PerformanceMonitor:
    """Applies the RULES to what is typical of the last steps; memory does not grow with their number."""

    def __init__(self, loader_workers: int, *, balances: bool = False) -> None:
        """`balances` as in Observation."""
        self._loader_workers, self._balances = loader_workers, balances
        self.devices: Sequence[str] = ()  # of all ranks, as in the `started` event
        self._collected: list[Sequence[RankStepTimes]] = []
        self._readings: deque[Mapping[int, Reading]] = deque(maxlen=_READINGS)
        self._latest: Mapping[int, Reading] | None = None
        self._to_skip = _MIXED_READINGS
        self._steps, self._seconds = -WARM_UP, 0.0  # since the last check
        self._is_first = True  # the window
        self._warned: set[str] = set()
        self._in_a_row: dict[str, list[float]] = {}  # seconds of the windows with a finding of each rule

    def update(
        self, times: Sequence[RankStepTimes], steps: int = 1, readings: Mapping[int, Reading] | None = None
    ) -> list[str]:
        """Add the times of one step, or those typical of several `steps`, and the latest readings by rank.

        Returns new warnings. The same readings, which are newer every two seconds only, count once.
        """
        self._steps += steps
        if readings and readings is not self._latest:
            self._latest = readings
            self._to_skip -= 1
            if self._to_skip < 0:
                self._readings.append(readings)
        if self._steps <= 0:
            return []
        self._collected.append(times)
        self._seconds += steps * max(each.step_s for each in times)
        is_last_in_time = self._is_first and self._steps + steps > WINDOW  # the next times come after the 20th step
        is_full = self._steps >= WINDOW or is_last_in_time
        if not is_full or self._seconds < WINDOW_S or len(self._collected) < MIN_SYNCS:
            return []
        typical = [typical_step(rank) for rank in zip(*self._collected, strict=True)]
        exchange = median(min(_sync_share(rank) for rank in sync) for sync in self._collected)
        latest = Counter(max(sync, key=lambda rank: rank.own_s).rank for sync in self._collected)
        late = {rank: count / len(self._collected) for rank, count in latest.items()}
        window = self._steps, self._seconds
        self._collected.clear()
        self._steps, self._seconds = 0, 0.0
        by_rank = {each.rank: [found[each.rank] for found in self._readings if each.rank in found] for each in typical}
        seen = Observation(typical, self._loader_workers, by_rank, self.devices, late, exchange, self._balances)
        found = self._warnings(seen, *window)
        self._is_first = False
        return found

    def interrupt(self) -> None:
        """Something else than training begins or ends: what the devices did until then does not count."""
        self._readings.clear()
        self._to_skip = _MIXED_READINGS

    def _warnings(self, seen: Observation, steps: int, seconds: float) -> list[str]:
        """What is found for the first time and either clear or lasting."""
        texts = []
        for name, rule in RULES.items():
            finding = None if name in self._warned else rule(seen)
            if finding is None:
                self._in_a_row.pop(name, None)
                continue
            windows = self._in_a_row.setdefault(name, [])
            windows.append(seconds)
            is_from_the_start = self._is_first and steps <= NAMED_WITHIN
            if _is_certain(finding, windows, at_once=is_from_the_start):
                self._warned.add(name)
                texts.append(finding.text)
        return texts


def _is_certain(finding: Finding, windows: Sequence[float], *, at_once: bool) -> bool:
    """Whether it is warned of, after `windows` in a row with it, in seconds."""
    has_lasted = sum(windows) >= LASTING_S
    if finding.excess >= SURE_EXCESS:
        return has_lasted or at_once
    return has_lasted and len(windows) >= LASTING


def _sync_share(times: RankStepTimes) -> float:
    return times.sync_s / times.step_s if times.step_s > 0 else 0.0
