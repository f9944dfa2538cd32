"""When logs, backups, samples and validations are due."""

from __future__ import annotations

import time
from collections.abc import Mapping

from modules.config import Interval
from modules.data.loading.progress import Progress


def is_due(interval: Interval, before: Progress, after: Progress) -> bool:
    """True if the step from `before` to `after` completes another `interval` of steps or epochs.

    A pure function of the progress, so every rank gets the same answer; minutes are the business of `TimeTrigger`.
    """
    match interval.unit:
        case "steps":
            return after.step // int(interval.count) > before.step // int(interval.count)
        case "epochs":
            return _epochs(after, interval.count) > _epochs(before, interval.count)
        case _:
            return False


def has_passed(interval: Interval, progress: Progress) -> bool:
    """True once a first `interval` of steps or epochs is over; never for minutes, on which ranks could differ."""
    match interval.unit:
        case "steps":
            return progress.step >= interval.count
        case "epochs":
            return _epochs(progress, interval.count) >= 1
        case _:
            return False


class TimeTrigger:
    """Intervals in minutes. Measured on rank 0 alone, whose requests reach the other ranks with the metrics."""

    def __init__(self, intervals: Mapping[str, Interval], passed_s: Mapping[str, float] | None = None) -> None:
        """`passed_s`: the part of the first interval, by name, that has passed already."""
        now = time.monotonic()
        self._every_s = {name: i.count * 60 for name, i in intervals.items() if i.unit == "minutes"}
        self._last = {name: now - (passed_s or {}).get(name, 0.0) for name in self._every_s}

    def due(self, *only: str) -> list[str]:
        """The names, or those among `only`, whose interval has passed since they were last due."""
        now = time.monotonic()
        due = [name for name, every_s in self._every_s.items() if now - self._last[name] >= every_s]
        due = [name for name in due if not only or name in only]
        self._last.update(dict.fromkeys(due, now))
        return due


def _epochs(progress: Progress, count: float) -> int:
    # 1e-9: a whole number of epochs must not fall just below itself by rounding
    return int(progress.epochs / count + 1e-9)
