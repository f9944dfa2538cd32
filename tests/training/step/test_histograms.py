"""Histograms of tensors, and those of a run on one and on two ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from modules.monitoring import Histogram
from modules.training.step import histograms as module
from modules.training.step.histograms import BINS, histograms
from tests.runs import ROOT, Run, tiny_config, train_alone

SETTINGS: dict[str, object] = {
    "family": str(ROOT / "tests" / "block_family.py"),
    "family_options": {"width": 5},  # an odd width divides by no number of ranks
    "precision": "fp64",
    "batch_size": 2,
    "global_batch_size": 4,
    "max_grad_norm": 0.1,
    "max_steps": 4,
    "tensorboard": True,
    "histograms_every": "2 steps",
    "sample_every": "never",
}
PAIR_JOBS: dict[str, dict[str, object]] = {
    f"histograms {mode}": {**SETTINGS, "training_mode": mode} for mode in ("distributed", "fully_sharded")
}


def histogram(values: torch.Tensor) -> Histogram | None:
    return histograms({"": values}).get("")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_histogram_is_that_of_numpy_whatever_the_pieces(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(30, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    monkeypatch.setattr(module, "_PIECE", 50)
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


def test_a_weight_without_a_gradient_has_no_histogram_of_it() -> None:
    assert set(histograms({"weights/a": torch.ones(3), "gradients/a": None})) == {"weights/a"}
    assert histograms({}) == {}


class Reads(TorchFunctionMode):
    """Counts what copies values to the host, or makes it wait to learn the shape of a result."""

    NAMES = ("tolist", "item", "cpu", "numpy", "bincount", "nonzero", "__bool__", "__float__")

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.NAMES:
            self.found[name] += 1
        if name == "__getitem__" and isinstance(args[1], torch.Tensor):  # a mask
            self.found["mask"] += 1
        return func(*args, **(kwargs or {}))


def test_the_host_waits_once_for_all_tensors() -> None:
    tensors = {str(number): torch.randn(7, number + 1) for number in range(9)}
    tensors["3"][:] = float("nan")
    with Reads() as reads:
        assert len(histograms(tensors)) == 8
    assert reads.found == {"tolist": 1}


def board_of(run: Run) -> dict[str, dict[int, tuple[list[float], list[float]]]]:
    """By tag and step: the figures of a histogram and its counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run.folder.tensorboard_dir), size_guidance={"histograms": 0})
    board.Reload()
    found: dict[str, dict[int, tuple[list[float], list[float]]]] = {}
    for tag in board.Tags()["histograms"]:
        for each in board.Histograms(tag):
            value = each.histogram_value
            figures = [value.min, value.max, value.num, value.sum, value.sum_squares]
            found.setdefault(tag, {})[each.step] = (figures, list(value.bucket))
    return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.xdist_group("pair")
def test_two_ranks_show_what_one_process_shows(images: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    code, one = train_alone(tiny_config(images, tmp_path, **SETTINGS))
    assert code == 0
    expected = board_of(one)
    assert any(tag.startswith("gradients/") for tag in expected)
    for mode in PAIR_JOBS:
        found = board_of(pair[mode])
        assert found.keys() == expected.keys(), mode
        for tag, by_step in expected.items():
            assert list(found[tag]) == list(by_step) == [2, 4]
            for step, (figures, counts) in by_step.items():
                assert found[tag][step][0] == pytest.approx(figures, rel=1e-9, abs=1e-12), (mode, tag, step)
                # a value at the edge of a bin may fall to its other side by rounding
                moved = sum(abs(now - then) for now, then in zip(found[tag][step][1], counts, strict=True))
                assert moved <= 2, (mode, tag, step)
