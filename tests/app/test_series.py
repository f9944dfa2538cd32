"""Long curves in bounded memory, and their reduction for a plot."""

from __future__ import annotations

import math

import pytest

from app.monitor.points import extent, nearest, outline, points_of, smoothed, within
from modules.run.view.series import Series


def series_of(values: list[float], max_points: int = 64) -> Series:
    series = Series(max_points)
    for step, value in enumerate(values, start=1):
        series.add(step, 1000.0 + step, value)
    return series


def test_short_curve_is_unchanged() -> None:
    curve = series_of([3.0, 1.0, 2.0]).curve()
    assert list(curve.steps) == [1, 2, 3]
    assert list(curve.times) == [1001, 1002, 1003]
    assert list(curve.lows) == list(curve.highs) == list(curve.means) == [3.0, 1.0, 2.0]


def test_long_curve_stays_small_and_keeps_extremes() -> None:
    values = [math.sin(step / 50) for step in range(10_000)]
    values[7777], values[1234] = 99.0, -55.0
    series = series_of(values)
    curve = series.curve()
    assert 32 <= len(curve) <= 64
    assert series.count == 10_000
    assert (min(curve.lows), max(curve.highs)) == (-55.0, 99.0)
    assert curve.steps[-1] == 10_000
    assert list(curve.steps) == sorted(curve.steps)
    weighted = math.fsum(mean * count for mean, count in zip(curve.means, _counts(list(curve.steps)), strict=True))
    assert weighted / 10_000 == pytest.approx(math.fsum(values) / 10_000, abs=1e-9)


def test_repeated_steps_replace_previous_ones() -> None:
    series = series_of([1.0] * 1000)
    series.add(601, 5000.0, 7.0)
    curve = series.curve()
    assert curve.steps[-1] == 601
    assert series.count <= 1 + 600
    assert max(curve.highs) == 7.0
    assert len([step for step in curve.steps if step >= 601]) == 1
    series.truncate_from(0)
    assert len(series) == series.count == 0
    series.add(1, 1.0, 2.0)
    assert list(series.curve().means) == [2.0]


def test_non_finite_values_are_skipped() -> None:
    assert list(series_of([1.0, math.nan, math.inf, 2.0]).curve().steps) == [1, 4]


def test_reduction_limits_points_and_keeps_extremes() -> None:
    values = [0.0] * 5000
    values[2500] = 9.0
    points = points_of(series_of(values, 8192).curve(), "steps", 0.0)
    few = within(points, 1, 5000, 100)
    assert len(few) <= 101
    assert few.high.max() == 9.0
    assert outline(few)[1].max() == 9.0
    visible = within(points, 2490, 2510, 100)
    assert len(visible) <= 24
    assert extent(points, 2490, 2510) == (0.0, 9.0)
    assert extent(points, 1, 100) == (0.0, 0.0)
    assert points.steps[nearest(points, 2500.4)] == 2500


def test_time_starts_at_first_event_and_is_monotonic() -> None:
    series = Series()
    for step, time in ((1, 100.0), (2, 90.0), (3, 130.0)):
        series.add(step, time, 1.0)
    assert list(points_of(series.curve(), "time", 100.0).x) == [0.0, 0.0, 30.0]


def test_smoothing_neither_lags_nor_adds_noise() -> None:
    line = points_of(series_of([float(step) for step in range(2000)], 4096).curve(), "steps", 0.0)
    x, averages = smoothed(line, 50)
    assert abs(averages[1000] - (x[1000] - 1)) < 0.01, "a straight line is unchanged"
    assert len(smoothed(line, 0)[0]) == 0
    noisy = points_of(series_of([1.0 + (-1) ** step for step in range(2000)], 4096).curve(), "steps", 0.0)
    assert all(abs(value - 1.0) < 0.1 for value in smoothed(noisy, 50)[1])
    empty = points_of(Series().curve(), "steps", 0.0)
    assert len(smoothed(empty, 50)[0]) == len(within(empty, 0, 1, 10)) == 0
    assert extent(empty, 0, 1) is None
    assert nearest(empty, 3) == -1


def _counts(steps: list[float]) -> list[float]:
    return [after - before for before, after in zip([0.0, *steps], steps, strict=False)]
