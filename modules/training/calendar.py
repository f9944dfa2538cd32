"""When logs, backups, samples and validations are due."""

from __future__ import annotations

import time
from collections.abc import Mapping

from modules.config import Interval, TrainConfig
from modules.data.progress import Progress


def is_due(interval: Interval, before: Progress, after: Progress) -> bool:
    """True where the step from `before` to `after` completes another `interval` of steps or epochs.

    A pure function of the progress, so every rank finds the same; minutes are the business of `Clocks`.
    """
    match interval.unit:
        case "steps":
            return after.step // int(interval.count) > before.step // int(interval.count)
        case "epochs":
            return _epochs(after, interval.count) > _epochs(before, interval.count)
        case _:
            return False


def has_passed(interval: Interval, progress: Progress) -> bool:
    """True where a first `interval` of steps or epochs is over; never for one in minutes, on which ranks could differ.

    A pure function of the progress, as above.
    """
    match interval.unit:
        case "steps":
            return progress.step >= interval.count
        case "epochs":
            return _epochs(progress, interval.count) >= 1
        case _:
            return False


def intervals(config: TrainConfig) -> dict[str, Interval]:
    """The interval of every kind of work that ranks begin together."""
    return {"backup": config.backup_every, "sample": config.sample_every, "validate": config.validate_every}


class Clocks:
    """Intervals in minutes. Measured on rank 0 alone and told to the others through the agreement."""

    def __init__(self, intervals: Mapping[str, Interval]) -> None:
        now = time.monotonic()
        self._every_s = {name: i.count * 60 for name, i in intervals.items() if i.unit == "minutes"}
        self._last = dict.fromkeys(self._every_s, now)

    def rung(self) -> list[str]:
        """The names whose time has come since they last came."""
        now = time.monotonic()
        due = [name for name, every_s in self._every_s.items() if now - self._last[name] >= every_s]
        self._last.update(dict.fromkeys(due, now))
        return due


def _epochs(progress: Progress, count: float) -> int:
    # 1e-9: a whole number of epochs must not fall just below itself by rounding
    return int(progress.samples_seen / progress.epoch_size / count + 1e-9)
