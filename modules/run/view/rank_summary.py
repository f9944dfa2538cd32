"""Means and maxima of what ranks report: of a step's times over the steps, of all else over the reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PEAK_SHARE: Final = "peak_percent"  # of the FLOPs that the device was measured to do at most
_MOST_STEPS: Final = 10**6  # of a report: the run folder may hold any number
MOST_METRICS: Final = 40  # of a rank
_STEP_TIME_ENDING: Final = "_s"
_RATE_ENDING: Final = ("_per_s", "_mb_s")


@dataclass
class MetricSummary:
    """Mean and maximum of a metric over the run."""

    weight: float = 0.0
    total: float = 0.0
    maximum: float = -math.inf

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value that stands for so many."""
        self.weight += weight
        self.total += weight * value
        self.maximum = max(self.maximum, value)

    @property
    def mean(self) -> float:
        """The mean; NaN without values."""
        return self.total / self.weight if self.weight else math.nan


def add_reading(summaries: dict[str, MetricSummary], name: str, value: float, steps: int) -> None:
    """Add a metric of a report that covers so many steps, unless a rank has more metrics than any run reports."""
    if name not in summaries and len(summaries) >= MOST_METRICS:
        return
    is_step_time = name.endswith(_STEP_TIME_ENDING) and not name.endswith(_RATE_ENDING)
    summaries.setdefault(name, MetricSummary()).add(value, min(max(1, steps), _MOST_STEPS) if is_step_time else 1)


def is_peak_known(ranks: Iterable[Mapping[str, MetricSummary]]) -> bool:
    """Whether the devices' peaks are: a share above 100 % shows that one does more than was measured as its peak."""
    return all(summaries[PEAK_SHARE].maximum <= 100 for summaries in ranks if PEAK_SHARE in summaries)
