"""Histograms of a tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modules.training import histograms
from modules.training.histograms import BINS, histogram


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_histogram_is_that_of_numpy_whatever_the_pieces(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(30, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    monkeypatch.setattr(histograms, "_PIECE", 50)
    found = histogram(values)
    assert found is not None
    expected = values.double().numpy()
    counts, edges = np.histogram(expected, BINS)
    assert list(found.counts) == counts.tolist()
    assert found.limits == pytest.approx(edges[1:].tolist())
    assert (found.least, found.greatest) == (expected.min(), expected.max())
    assert found.total == pytest.approx(expected.sum())
    assert found.squares == pytest.approx((expected**2).sum())


def test_values_that_are_not_finite_are_left_out() -> None:
    found = histogram(torch.tensor([float("nan"), 2.0, float("inf"), 2.0, float("-inf")]))
    assert found is not None
    assert (found.least, found.greatest, sum(found.counts), found.total) == (2.0, 2.0, 2, 4.0)
    assert histogram(torch.tensor([float("nan")])) is None
    assert histogram(torch.zeros(0, 3)) is None, "the share of a rank can be empty"
