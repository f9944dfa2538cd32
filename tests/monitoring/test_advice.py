"""Which rank keeps the others waiting, and whether a run waits for its pictures; each told once."""

from __future__ import annotations

import pytest

from modules.monitoring import Advice, RankFigures
from modules.monitoring.advice import WINDOW, starvation, straggler


def rank(number: int, own_s: float, data_s: float = 0.0, samples: float = 8, step_s: float = 1.0) -> RankFigures:
    return RankFigures(number, "alpha" if number < 2 else "beta", step_s, data_s, own_s, samples)


def test_a_slow_rank_is_named_with_its_host_and_by_how_much() -> None:
    text = straggler([rank(0, 0.3), rank(1, 0.32), rank(2, 0.66), rank(3, 0.31)])
    assert text.startswith("Rank 2 on beta keeps the others waiting: 0.35 of the 1.00 s of a step.")
    assert "2.1 x as long" in text
    assert "device_ids" in text


def test_a_rank_whose_loader_is_late_is_told_so() -> None:
    text = straggler([rank(0, 0.3), rank(1, 0.3), rank(2, 0.7, data_s=0.4)])
    assert "because it waits 0.40 s for its pictures" in text
    assert "disk of beta" in text


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0, 0.3)],
        [rank(0, 0.30), rank(1, 0.36)],  # a fifth slower
        [rank(0, 0.02), rank(1, 0.05)],  # much slower in a part of the step that does not matter
        [rank(0, 0.001, step_s=0.01), rank(1, 0.009, step_s=0.01)],  # steps of a toy
        [rank(0, 0.3, samples=2), rank(1, 0.45, samples=3)],  # it has more to do
        [rank(0, 0.0), rank(1, 0.0)],
    ],
)
def test_nobody_is_blamed_for_little_or_for_more_samples(ranks: list[RankFigures]) -> None:
    assert straggler(ranks) == ""


def test_waiting_for_the_loader() -> None:
    ranks = [rank(0, 0.6, data_s=0.3), rank(1, 0.6, data_s=0.4)]
    text = starvation(ranks, loader_workers=4)
    assert "40% of each step on rank 1 (alpha)" in text
    assert "loader_workers=8 (now 4)" in text
    assert starvation([rank(0, 0.6, data_s=0.1)], loader_workers=4) == ""
    assert starvation([rank(0, 0.0, step_s=0.0)], loader_workers=4) == ""
    assert starvation([rank(0, 0.005, data_s=0.005, step_s=0.01)], loader_workers=4) == ""
    assert "loader_workers=2 (now 0)" in starvation(ranks, loader_workers=0)


def test_each_is_told_once_and_only_after_many_steps() -> None:
    advice = Advice(loader_workers=2)
    step = [rank(0, 0.3, data_s=0.25), rank(1, 0.9, data_s=0.25)]
    told = [advice.look(step) for _ in range(10 * WINDOW)]
    when = [number for number, texts in enumerate(told) if texts]
    assert len(when) == 1
    assert when[0] >= WINDOW
    assert [text.split(" ")[0] for text in told[when[0]]] == ["Rank", "The"]


def test_a_look_at_several_steps_counts_as_many() -> None:
    advice = Advice(loader_workers=2)
    step = [rank(0, 0.3, data_s=0.25), rank(1, 0.9, data_s=0.25)]
    told = [advice.look(step, steps=8) for _ in range(WINDOW)]
    assert [number for number, texts in enumerate(told) if texts] == [13]  # 14 x 8 steps, 5 of which warm up


def test_single_slow_steps_are_nobodys_fault() -> None:
    advice = Advice(loader_workers=2)
    for number in range(10 * WINDOW):
        assert advice.look([rank(0, 0.3), rank(1, 2.0 if number % 5 == 0 else 0.3)]) == []
