"""Stragglers and runs that are limited by data loading: each is reported once."""

from __future__ import annotations

import pytest

from modules.monitoring import RankStepTimes, StragglerMonitor
from modules.monitoring.straggler_monitor import WINDOW, starvation_warning, straggler_warning


def rank(number: int, own_s: float, data_s: float = 0.0, samples: float = 8, step_s: float = 1.0) -> RankStepTimes:
    return RankStepTimes(number, "alpha" if number < 2 else "beta", step_s, data_s, own_s, samples)


def test_straggler_is_named_with_host_and_delay() -> None:
    text = straggler_warning([rank(0, 0.3), rank(1, 0.32), rank(2, 0.66), rank(3, 0.31)])
    assert text.startswith("Rank 2 on beta is a straggler: the others wait 0.35 s of each 1.00 s step.")
    assert "2.1 x as long" in text
    assert "device_ids" in text


def test_slow_loader_is_named_as_the_cause() -> None:
    text = straggler_warning([rank(0, 0.3), rank(1, 0.3), rank(2, 0.7, data_s=0.4)])
    assert "because its loader takes 0.40 s to deliver images" in text
    assert "disk of beta" in text


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0, 0.3)],
        [rank(0, 0.30), rank(1, 0.36)],  # a fifth slower
        [rank(0, 0.02), rank(1, 0.05)],  # much slower in a negligible part of the step
        [rank(0, 0.001, step_s=0.01), rank(1, 0.009, step_s=0.01)],  # tiny steps
        [rank(0, 0.3, samples=2), rank(1, 0.45, samples=3)],  # it has more to do
        [rank(0, 0.0), rank(1, 0.0)],
    ],
)
def test_no_warning_for_small_delays_or_more_samples(ranks: list[RankStepTimes]) -> None:
    assert straggler_warning(ranks) == ""


def test_waiting_for_the_loader() -> None:
    ranks = [rank(0, 0.6, data_s=0.3), rank(1, 0.6, data_s=0.4)]
    text = starvation_warning(ranks, loader_workers=4)
    assert "40% of each step on rank 1 (alpha) is spent waiting for samples" in text
    assert "loader_workers=8 (now 4)" in text
    assert starvation_warning([rank(0, 0.6, data_s=0.1)], loader_workers=4) == ""
    assert starvation_warning([rank(0, 0.0, step_s=0.0)], loader_workers=4) == ""
    assert starvation_warning([rank(0, 0.005, data_s=0.005, step_s=0.01)], loader_workers=4) == ""
    assert "loader_workers=2 (now 0)" in starvation_warning(ranks, loader_workers=0)


def test_each_warning_comes_once_after_many_steps() -> None:
    monitor = StragglerMonitor(loader_workers=2)
    step = [rank(0, 0.3, data_s=0.25), rank(1, 0.9, data_s=0.25)]
    warnings = [monitor.update(step) for _ in range(10 * WINDOW)]
    when = [number for number, texts in enumerate(warnings) if texts]
    assert len(when) == 1
    assert when[0] >= WINDOW
    assert [text.split(" ")[0] for text in warnings[when[0]]] == ["Rank", "Training"]


def test_medians_count_as_the_steps_they_cover() -> None:
    monitor = StragglerMonitor(loader_workers=2)
    step = [rank(0, 0.3, data_s=0.25), rank(1, 0.9, data_s=0.25)]
    warnings = [monitor.update(step, steps=8) for _ in range(WINDOW)]
    assert [number for number, texts in enumerate(warnings) if texts] == [13]  # 14 x 8 steps, 5 of which warm up


def test_single_slow_steps_are_ignored() -> None:
    monitor = StragglerMonitor(loader_workers=2)
    for number in range(10 * WINDOW):
        assert monitor.update([rank(0, 0.3), rank(1, 2.0 if number % 5 == 0 else 0.3)]) == []
