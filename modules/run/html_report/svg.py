"""A plot of a few curves as SVG, which any browser draws without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from modules.run.view.series import Curve

WIDTH: Final = 640
HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 10, 10, 26  # margins, in units of the drawing
_MOST_POINTS: Final = 300  # of a line; more cannot be told apart at this width
_LARGEST: Final = 1e100  # of a value; sums of larger ones could overflow, and quotients of ones below 1 / _LARGEST
_OUTLIERS: Final = 0.01  # the share of the highest values that may lie above the plot


@dataclass(frozen=True)
class Line:
    """One curve of a plot: `spread` also shows the lowest and highest value of what is drawn as one point."""

    label: str
    curve: Curve
    spread: bool = False


@dataclass(frozen=True)
class _Points:
    steps: list[float]
    lows: list[float]
    highs: list[float]
    means: list[float]


def plot(lines: Sequence[Line]) -> Markup:
    """The lines over steps, each in the colour of the class line-1, line-2, …; empty if there is no point."""
    drawn = [(line, _reduced(line.curve)) for line in lines if len(line.curve)]
    if not drawn:
        return Markup()
    first = min(points.steps[0] for _, points in drawn)
    last = max(points.steps[-1] for _, points in drawn)
    low, high = _value_range([points for _, points in drawn], spread=[line.spread for line, _ in drawn])
    to_x = _Scale(first, last, _LEFT, WIDTH - _RIGHT)
    to_y = _Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(low, high, first, last)]
    for number, (line, points) in enumerate(drawn, start=1):
        xs = [to_x(step) for step in points.steps]
        if line.spread and len(xs) > 1:
            above = [f"{x:.1f},{to_y(value):.1f}" for x, value in zip(xs, points.highs, strict=True)]
            below = [f"{x:.1f},{to_y(value):.1f}" for x, value in zip(xs, points.lows, strict=True)][::-1]
            parts.append(f'<polygon class="spread line-{number}" points="{" ".join(above + below)}"/>')
        ys = [to_y(value) for value in points.means]
        if len(xs) == 1:
            parts.append(f'<circle class="dot line-{number}" cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="3"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
            parts.append(f'<polyline class="line line-{number}" points="{path}"/>')
    label = escape(", ".join(line.label for line, _ in drawn))
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return Markup(head + "".join(parts) + "</svg>")  # numbers, and the label, which is escaped


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round values between two others: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next((factor for factor in (1, 2, 5) if factor * power >= rough), 10)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _reduced(curve: Curve) -> _Points:
    size = -(-len(curve) // _MOST_POINTS)
    starts = range(0, len(curve), size)
    lows, highs, means = (
        [[_drawable(value) for value in column[start : start + size]] for start in starts]
        for column in (curve.lows, curve.highs, curve.means)
    )
    return _Points(
        [curve.steps[min(start + size, len(curve)) - 1] for start in starts],
        [min(each) for each in lows],
        [max(each) for each in highs],
        [math.fsum(each) / len(each) for each in means],
    )


def _drawable(value: float) -> float:
    return 0.0 if abs(value) < 1 / _LARGEST else min(max(value, -_LARGEST), _LARGEST)


def _value_range(drawn: Sequence[_Points], spread: Sequence[bool]) -> tuple[float, float]:
    """The lowest and highest value to show; single points far above the others do not count."""
    lows = [min(points.lows if wide else points.means) for points, wide in zip(drawn, spread, strict=True)]
    highs = []
    for points, wide in zip(drawn, spread, strict=True):
        values = sorted(points.highs if wide else points.means)
        highs.append(values[max(0, len(values) - 1 - int(_OUTLIERS * len(values)))])
    low, high = min(lows), max(highs)
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


class _Scale:
    """Maps values between two others to positions on an axis, and all beyond them to its ends."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start, self._end = low, start, end
        self._factor = (end - start) / (high - low) if high > low else 0.0

    def __call__(self, value: float) -> float:
        position = self._start + (value - self._low) * self._factor
        return min(max(position, min(self._start, self._end)), max(self._start, self._end))


def _grid(low: float, high: float, first: float, last: float) -> str:
    to_x = _Scale(first, last, _LEFT, WIDTH - _RIGHT)
    to_y = _Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = []
    for value in ticks(low, high, 5):
        y = to_y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in ticks(first, last, 6):
        if value != int(value):
            continue
        x = to_x(value)
        end = "end" if x > WIDTH - _RIGHT - 20 else "middle"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{end}">{value:,.0f}</text>')
    return "".join(parts)
