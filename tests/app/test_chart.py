"""The ticks of a plot, without a window."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from app.monitor.chart import Chart, PlotLine
from app.monitor.legend import distinct_names, names_that_fit
from app.monitor.points import Points, points_of
from app.widgets import theme
from modules.run.view.series import Series


def points(*steps: int) -> Points:
    x = np.array(steps, dtype=np.float64)
    return Points(x, x, x, x, x, x)


def ticks(chart: Chart, *steps: int) -> list[str]:
    chart.show([PlotLine("loss", points(*steps), theme.SERIES[0])], "steps", 0.0, None, 800, 300)
    chart.render()
    low, high = chart.axes.get_xlim()
    shown = [
        (at, label.get_text()) for at, label in zip(chart.axes.get_xticks(), chart.axes.get_xticklabels(), strict=True)
    ]
    return [label for at, label in shown if low <= at <= high]


@pytest.mark.parametrize("steps", [(1,), (7,), (1, 2), (1, 2, 3), (1, 1875)])
def test_no_step_is_named_twice(steps: tuple[int, ...]) -> None:
    chart = Chart()
    named = ticks(chart, *steps)
    assert len(named) == len(set(named)) > 0
    chart.show(chart.lines, "time", 0.0, None, 800, 300)
    assert ticks(chart, *steps) == named  # back from the time axis


@pytest.mark.parametrize("last", [49, 95, 225, 1875])
def test_steps_are_named_in_round_numbers(last: int) -> None:
    named = [int(label.replace(",", "")) for label in ticks(Chart(), 1, last)]
    apart = {after - before for before, after in pairwise(named)}
    assert len(apart) == 1
    assert str(apart.pop()).rstrip("0") in ("1", "2", "5")


def test_first_step_is_a_dot_until_there_is_a_line() -> None:
    chart, markers = Chart(), []
    for steps in ((1,), (1, 2)):
        ticks(chart, *steps)
        markers.append(chart._artists[0].raw.get_marker())
    assert markers == ["o", ""]
    chart.show([PlotLine("loss", points(1), theme.SERIES[0])], "steps", 20.0, None, 800, 300)
    shown = chart._artists[0]
    assert (shown.raw.get_marker(), shown.smooth.get_marker()) == ("", "o"), "of a smoothed line the one in front"


def test_constant_small_number_has_ticks_around_it_in_one_notation() -> None:
    steps, rate = np.arange(9, dtype=np.float64), np.full(9, 1e-4)
    rate[4:] *= 1 + 1e-15  # as a schedule computes it
    chart = Chart()
    line = PlotLine("lr", Points(steps, rate, rate, rate, steps, steps), theme.SERIES[0], smooth=True)
    chart.show([line], "steps", 0.0, None, 400, 200)
    chart.render()
    named = [label.get_text() for label in chart.axes.get_yticklabels()]
    assert "1e-4" in named
    assert len(named) == len(set(named))
    assert all(label.endswith(("e-4", "e-5")) for label in named)


def test_values_beyond_those_of_training_are_left_out() -> None:
    """Of a foreign run: their sums, and the distance between two of them, are no numbers any more."""
    series = Series()
    for step, value in enumerate((1e308, -1e308, 3e38, -3e38, 0.5), start=1):
        series.add(step, step, value)
    chart, shown = Chart(), points_of(series.curve(), "steps", 0.0)
    assert shown.steps.tolist() == [3.0, 4.0, 5.0]
    chart.show([PlotLine("loss", shown, theme.SERIES[0])], "steps", 10.0, None, 800, 300)
    chart.render()


def test_outliers_are_cut_off_only_where_runs_are_compared() -> None:
    steps = np.arange(100, dtype=np.float64)
    loss = np.where(steps == 50, 1000.0, 1.0 + 0.1 * np.sin(steps))
    line = PlotLine("loss", Points(steps, loss, loss, loss, steps, steps), theme.SERIES[0])
    heights = {}
    for clips in (False, True):
        chart = Chart(clips=clips)
        chart.show([line], "steps", 0.0, None, 800, 300)
        heights[clips] = chart.axes.get_ylim()[1]
    assert heights[False] > 1000
    assert 1.1 < heights[True] < 2


def test_names_of_runs_keep_what_differs() -> None:
    names = ["a-very-long-name-of-a-run-with-rank-8", "a-very-long-name-of-a-run-with-rank-16", "short"]
    assert distinct_names(names[:2]) == ["…name-of-a-run-with-rank-8", "…ame-of-a-run-with-rank-16"]
    assert distinct_names(["cats", "dogs"]) == ["cats", "dogs"]
    dated = ["stable_diffusion-1", "stable_diffusion-20261123-161121"]
    assert distinct_names(dated, 13) == ["…_diffusion-1", "…61123-161121"]
    middle = [f"a-run-that-has-rank-{rank}-and-a-long-end-that-is-the-same" for rank in (8, 16)]
    assert distinct_names(middle) == ["…8-and-a-long-end-that-is…", "…16-and-a-long-end-that-i…"]
    assert all(len(name) <= 26 for name in distinct_names(names))
    assert len(set(distinct_names(names))) == 3
    assert names_that_fit(names[:2], lambda name: len(name) <= 15) == ["…un-with-rank-8", "…n-with-rank-16"]
    assert names_that_fit(["cats", *names[:1]], lambda name: len(name) <= 40) == ["cats", "…name-of-a-run-with-rank-8"]


def test_a_low_plot_has_two_numbers_on_its_axis() -> None:
    steps = np.arange(100, dtype=np.float64)
    for values in (np.linspace(0, 0.002, 100), np.linspace(31.0, 78.0, 100)):
        chart = Chart()
        line = PlotLine("rate", Points(steps, values, values, values, steps, steps), theme.SERIES[0])
        chart.show([line], "steps", 0.0, None, theme.px(240), theme.px(75))
        low, high = chart.axes.get_ylim()
        assert sum(low <= at <= high for at in chart.axes.get_yticks()) >= 2
