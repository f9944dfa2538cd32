"""Reduces a long curve to as many points as the plot has pixels, keeping extremes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from modules.run.view.series import Curve

Floats = NDArray[np.float64]
Axis = Literal["steps", "time"]

# The smoothed curve of a long run needs no more points than the plot has pixels.
_SMOOTH_POINTS = 2048
_MAX_SPAN_SHARE = 0.2


@dataclass(frozen=True)
class Points:
    """A curve as float64 arrays [N]: x, lowest, highest and mean value, step and time (s) of each point."""

    x: Floats
    low: Floats
    high: Floats
    mean: Floats
    steps: Floats
    times: Floats

    def __len__(self) -> int:
        return len(self.x)


def points_of(curve: Curve, axis: Axis, origin: float) -> Points:
    """The curve over steps, or over seconds since `origin` (seconds since 1970)."""
    steps, times, lows, highs, means = (
        np.array(column, dtype=np.float64)
        for column in (curve.steps, curve.times, curve.lows, curve.highs, curve.means)
    )
    if axis == "steps":
        return Points(steps, lows, highs, means, steps, times)
    # a clock set back must not fold the curve
    return Points(np.maximum.accumulate(times - origin) if len(times) else times, lows, highs, means, steps, times)


def within(points: Points, low: float, high: float, limit: int) -> Points:
    """The points from `low` to `high` plus one beyond each end, merged into about `limit` points."""
    first = max(0, int(np.searchsorted(points.x, low, "left")) - 1)
    last = min(len(points), int(np.searchsorted(points.x, high, "right")) + 1)
    part = Points(*(column[first:last] for column in _columns(points)))
    size = -(-len(part) // limit) if limit else 1
    return part if size <= 1 else _merged(part, size)


def smoothed(points: Points, span: float) -> tuple[Floats, Floats]:
    """(x, mean) of a two-sided exponential moving average over about `span` steps; empty if `span` is 0.

    It is symmetric, so it neither lags behind the curve nor departs from it at the start, and limited to a fifth of
    the curve, which would otherwise become a straight line.
    """
    if span <= 0 or not len(points):
        return np.empty(0), np.empty(0)
    span = min(span, float(points.steps[-1] - points.steps[0]) * _MAX_SPAN_SHARE or 1.0)
    size = -(-len(points) // _SMOOTH_POINTS)
    reduced = points if size <= 1 else _merged(points, size)
    steps, values = reduced.steps.tolist(), reduced.mean.tolist()
    behind, behind_weights = _exponential_sums(steps, values, span)
    ahead, ahead_weights = _exponential_sums([-step for step in reversed(steps)], values[::-1], span)
    # the value itself is in both sums
    return reduced.x, (behind + ahead[::-1] - reduced.mean) / (behind_weights + ahead_weights[::-1] - 1)


def _exponential_sums(steps: list[float], values: list[float], span: float) -> tuple[Floats, Floats]:
    """Running sums of the values and of their weights, which decay exponentially with the distance in steps."""
    totals, weights = np.empty(len(steps)), np.empty(len(steps))
    total = weight = 0.0
    previous = steps[0]
    for index, (step, value) in enumerate(zip(steps, values, strict=True)):
        decay = 0.5 ** (max(0.0, step - previous) / span * 2.0)
        total, weight, previous = total * decay + value, weight * decay + 1.0, step
        totals[index], weights[index] = total, weight
    return totals, weights


def outline(points: Points) -> tuple[Floats, Floats]:
    """(x, y) of a line through the lowest and the highest value of each point."""
    if not len(points) or bool(np.all(points.low == points.high)):
        return points.x, points.mean
    return np.repeat(points.x, 2), np.column_stack((points.low, points.high)).ravel()


def extent(points: Points, low: float, high: float) -> tuple[float, float] | None:
    """Lowest and highest value between two x; None if there are no points."""
    first = int(np.searchsorted(points.x, low, "left"))
    part = slice(first, max(first + 1, int(np.searchsorted(points.x, high, "right"))))
    lows, highs = points.low[part], points.high[part]
    return (float(lows.min()), float(highs.max())) if len(lows) else None


def usual_extent(points: Points, low: float, high: float) -> tuple[float, float] | None:
    """Like `extent`, without outliers: what lies beyond the middle 96 % by more than their range."""
    found = extent(points, low, high)
    inside = points.mean[(points.x >= low) & (points.x <= high)]
    if found is None or not len(inside):
        return found
    lower, upper = (float(value) for value in np.quantile(inside, (0.02, 0.98)))
    beyond = upper - lower or abs(upper)
    return max(found[0], lower - beyond), min(found[1], upper + beyond)


def nearest(points: Points, x: float) -> int:
    """Index of the point nearest to x; -1 if there are no points."""
    if not len(points):
        return -1
    index = int(np.searchsorted(points.x, x))
    if index == 0:
        return 0
    if index == len(points):
        return index - 1
    return index if points.x[index] - x < x - points.x[index - 1] else index - 1


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
