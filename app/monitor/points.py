"""From a long curve to the few points that a plot of so many pixels can show; extremes are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.series import Curve

Floats = NDArray[np.float64]
Axis = Literal["steps", "time"]

# For the smoothed curve of a long run: one pixel is one step of the average.
_SMOOTH_POINTS = 2048
_LARGEST_SHARE = 0.2


@dataclass(frozen=True)
class Points:
    """A curve in arrays: x, lowest, highest and mean value of each point; `steps` and `times` as they were."""

    x: Floats
    low: Floats
    high: Floats
    mean: Floats
    steps: Floats
    times: Floats

    def __len__(self) -> int:
        return len(self.x)


def points_of(curve: Curve, axis: Axis, origin: float) -> Points:
    """The curve over steps, or over seconds since `origin`."""
    steps, times, lows, highs, means = (
        np.array(column, dtype=np.float64)
        for column in (curve.steps, curve.times, curve.lows, curve.highs, curve.means)
    )
    if axis == "steps":
        return Points(steps, lows, highs, means, steps, times)
    # a clock that was set back must not fold the curve
    return Points(np.maximum.accumulate(times - origin) if len(times) else times, lows, highs, means, steps, times)


def within(points: Points, low: float, high: float, most: int) -> Points:
    """The points from `low` to `high` and one beside each end, merged to about `most`."""
    first = max(0, int(np.searchsorted(points.x, low, "left")) - 1)
    last = min(len(points), int(np.searchsorted(points.x, high, "right")) + 1)
    part = Points(*(column[first:last] for column in _columns(points)))
    size = -(-len(part) // most) if most else 1
    return part if size <= 1 else _merged(part, size)


def smoothed(points: Points, span: float) -> tuple[Floats, Floats]:
    """An average over about `span` steps, and where its points are; empty without smoothing.

    It looks as far ahead as back, so that it neither lags behind the curve nor leaves it at its beginning; and over
    no more than a part of the curve, which would be a straight line otherwise.
    """
    if span <= 0 or not len(points):
        return np.empty(0), np.empty(0)
    span = min(span, float(points.steps[-1] - points.steps[0]) * _LARGEST_SHARE or 1.0)
    size = -(-len(points) // _SMOOTH_POINTS)
    few = points if size <= 1 else _merged(points, size)
    steps, values = few.steps.tolist(), few.mean.tolist()
    behind, behind_weights = _decaying(steps, values, span)
    ahead, ahead_weights = _decaying([-step for step in reversed(steps)], values[::-1], span)
    # the value itself is in both
    return few.x, (behind + ahead[::-1] - few.mean) / (behind_weights + ahead_weights[::-1] - 1)


def _decaying(steps: list[float], values: list[float], span: float) -> tuple[Floats, Floats]:
    """At each point the sum of the values so far, each weighted less the farther it is; and the sum of the weights."""
    totals, weights = np.empty(len(steps)), np.empty(len(steps))
    total = weight = 0.0
    former = steps[0]
    for place, (step, value) in enumerate(zip(steps, values, strict=True)):
        keep = 0.5 ** (max(0.0, step - former) / span * 2.0)
        total, weight, former = total * keep + value, weight * keep + 1.0, step
        totals[place], weights[place] = total, weight
    return totals, weights


def outline(points: Points) -> tuple[Floats, Floats]:
    """A line that goes through the lowest and the highest value of each point."""
    if not len(points) or bool(np.all(points.low == points.high)):
        return points.x, points.mean
    return np.repeat(points.x, 2), np.column_stack((points.low, points.high)).ravel()


def extent(points: Points, low: float, high: float) -> tuple[float, float] | None:
    """The lowest and highest value between two places; None where there is nothing."""
    first = int(np.searchsorted(points.x, low, "left"))
    part = slice(first, max(first + 1, int(np.searchsorted(points.x, high, "right"))))
    lows, highs = points.low[part], points.high[part]
    return (float(lows.min()), float(highs.max())) if len(lows) else None


def nearest(points: Points, x: float) -> int:
    """The place of the point that is nearest to x; -1 without points."""
    if not len(points):
        return -1
    place = int(np.searchsorted(points.x, x))
    if place == 0:
        return 0
    if place == len(points):
        return place - 1
    return place if points.x[place] - x < x - points.x[place - 1] else place - 1


def _columns(points: Points) -> tuple[Floats, ...]:
    return points.x, points.low, points.high, points.mean, points.steps, points.times


def _merged(points: Points, size: int) -> Points:
    starts = np.arange(0, len(points), size)
    ends = np.minimum(starts + size, len(points))
    return Points(
        points.x[ends - 1],
        np.minimum.reduceat(points.low, starts),
        np.maximum.reduceat(points.high, starts),
        np.add.reduceat(points.mean, starts) / (ends - starts),
        points.steps[ends - 1],
        points.times[ends - 1],
    )
