"""Shares of a step: every sample is taken once whatever the table, and no other whole numbers would end earlier."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.data.loading.micro_batches import micro_batches
from modules.data.loading.order import StepSamples
from modules.data.loading.shares import Shares, describe_shares, share_counts

WEIGHTS = st.one_of(st.integers(1, 9).map(float), st.floats(0.001, 1.0))
TABLES = st.lists(WEIGHTS, min_size=1, max_size=7).map(tuple)


@settings(max_examples=200, deadline=None)
@given(table=TABLES, samples=st.integers(1, 70))
def test_the_last_rank_could_not_end_earlier(table: tuple[float, ...], samples: int) -> None:
    counts = share_counts(samples, len(table), table)
    assert sum(counts) == samples
    assert min(counts) >= 0
    ends = [count / Fraction(weight) for count, weight in zip(counts, table, strict=True)]
    # whoever takes a sample of the last rank ends no earlier than it does now
    assert all((count + 1) / Fraction(weight) >= max(ends) for count, weight in zip(counts, table, strict=True))


@pytest.mark.parametrize(
    ("samples", "table", "counts", "said"),
    [
        (12, (2.0, 1.0), (8, 4), "8 + 4 of 12 samples"),
        (8, (2.0, 1.0), (5, 3), "5 + 3 of 8 samples; 5.3 : 2.7 would be ideal"),
        (4, (2.9, 1.1), (3, 1), "3 + 1 of 4 samples; 2.9 : 1.1 would be ideal"),
        (6, (10.0, 1.0), (6, 0), "6 + 0 of 6 samples; 5.5 : 0.5 would be ideal"),
        (5, (3.0, 3.0), (2, 3), "2 + 3 of 5 samples; 2.5 : 2.5 would be ideal"),
    ],
)
def test_the_best_split_is_said(samples: int, table: tuple[float, ...], counts: tuple[int, ...], said: str) -> None:
    assert share_counts(samples, len(table), table) == counts
    assert describe_shares(samples, len(table), table) == said


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_equal_weights_divide_as_always(ranks: int) -> None:
    for samples in range(1, 20):
        expected = tuple(samples * (rank + 1) // ranks - samples * rank // ranks for rank in range(ranks))
        assert share_counts(samples, ranks) == share_counts(samples, ranks, (0.3,) * ranks) == expected


@settings(max_examples=200, deadline=None)
@given(
    table=TABLES,
    bucket=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    batch_size=st.integers(1, 6),
    least=st.integers(1, 4),
    equal_counts=st.booleans(),
)
def test_every_sample_is_trained_once(
    table: tuple[float, ...], bucket: list[int], batch_size: int, least: int, equal_counts: bool
) -> None:
    count, buckets = len(bucket), np.array(bucket, dtype=np.int32)
    random = np.random.default_rng(count)
    losses, weights = random.normal(size=count), random.uniform(0.5, 2, count)
    step = StepSamples(np.arange(count), np.arange(count), weights)
    ranks = [
        micro_batches(step, buckets, rank, len(table), batch_size, least, equal_counts, table=table)
        for rank in range(len(table))
    ]
    seen = [row for rank in ranks for each in rank for row, w in zip(each.rows, each.weights, strict=True) if w]
    assert sorted(seen) == list(range(count))
    assert all(len(each.rows) <= batch_size for rank in ranks for each in rank)
    assert all([each.is_last_of_step for each in rank] == [False] * (len(rank) - 1) + [True] for rank in ranks)
    if equal_counts:
        assert len({len(rank) for rank in ranks}) == 1
    mean = sum(np.dot(losses[list(each.rows)], each.weights) / each.step_samples for rank in ranks for each in rank)
    assert mean == pytest.approx(np.dot(losses, weights) / count, rel=1e-12, abs=1e-12), "that of one rank"


def test_a_table_is_valid_from_a_step_that_nobody_has_divided() -> None:
    shares = Shares()
    assert [shares.divide(step) for step in range(4)] == [()] * 4
    with pytest.raises(AssertionError, match="step 3 has been divided"):
        shares.change(3, (2.0, 1.0))
    shares.change(6, (2.0, 1.0))
    assert shares.latest == (2.0, 1.0)
    assert [shares.divide(step) for step in (4, 5, 6, 7)] == [(), (), (2.0, 1.0), (2.0, 1.0)]
    assert shares.first == ()
