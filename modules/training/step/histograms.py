"""Histograms of the trained weights and their gradients for TensorBoard, in the steps in which they are due."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import torch
from torch import Tensor

from modules.config import Interval
from modules.data.loading.progress import Progress
from modules.distributed import Weights
from modules.monitoring import Histogram, Report
from modules.training.step.triggers import TimeTrigger, is_due

BINS: Final = 64
_PIECE: Final = 1 << 22  # values that are converted to fp64 at a time: 32 MiB
_LANES: Final = 256  # places in which the values of a bin are counted


class WeightHistograms:
    """The weights and gradients of the whole model when `every` is due; in any other step nothing is read or computed.

    With fully_sharded each rank counts its own shards, and the counts are summed; otherwise rank 0 alone computes.
    """

    def __init__(self, every: Interval, weights: Weights, report: Report) -> None:
        self._every, self._weights, self._report = every, weights, report
        self._timer = TimeTrigger({"histograms": every})  # of rank 0 alone: the config allows none with fully_sharded

    def report_if_due(self, before: Progress, after: Progress) -> None:
        """To be called in the step from `before` to `after`, when its gradients are clipped and not applied yet."""
        if is_due(self._every, before, after) or self._timer.due():
            found = self._all() if self._weights.are_sharded else None
            self._report.histograms(self._all if found is None else lambda: found, after.step)

    def _all(self) -> dict[str, Histogram]:
        """By the tags that TensorBoard shows; a weight without a gradient in this step has none."""
        tensors: dict[str, Tensor | None] = {}
        for name, weight in self._weights.local.items():
            tensors |= {f"weights/{name}": weight, f"gradients/{name}": weight.grad}
        return histograms(tensors, self._weights.over_shards)


@torch.no_grad()
def histograms(
    tensors: Mapping[str, Tensor | None],
    over_shards: Callable[[Tensor, Literal["sum", "max"]], Tensor] = lambda values, _: values,
) -> dict[str, Histogram]:
    """The finite values of each tensor, of any shape, in 64 equal bins between the least and the greatest.

    None, and tensors without finite values, are left out. Computed in fp64 on the device of the values, some millions
    at a time; the host waits for it once, for all tensors. `over_shards` combines what the ranks found in their shards
    of `tensors`, whose names are the same on all of them.
    """
    if not tensors:
        return {}
    device = next((values.device for values in tensors.values() if values is not None), torch.device("cpu"))
    extremes = torch.full((len(tensors), 2), -math.inf, dtype=torch.float64, device=device)
    sums = torch.zeros(len(tensors), 2, dtype=torch.float64, device=device)
    # in fp64, which is exact up to 2^53 and which every backend sums
    counts = torch.zeros(len(tensors), BINS, dtype=torch.float64, device=device)
    for place, values in enumerate(tensors.values()):
        _add_moments(values, extremes[place], sums[place])
    extremes, sums = over_shards(extremes, "max"), over_shards(sums, "sum")
    least, greatest = -extremes[:, :1], extremes[:, 1:]
    edges = _edges(least, greatest)
    for place, values in enumerate(tensors.values()):
        _add_counts(values, edges[place], counts[place])
    counts = over_shards(counts, "sum")
    found = {}
    rows = torch.cat([least, greatest, sums, edges[:, 1:], counts], dim=1).tolist()
    for name, (low, high, total, squares, *bins) in zip(tensors, rows, strict=True):
        if low <= high:
            found[name] = Histogram(low, high, total, squares, bins[:BINS], [int(each) for each in bins[BINS:]])
    return found


def _add_moments(values: Tensor | None, extremes: Tensor, sums: Tensor) -> None:
    """`extremes` [2]: the least value negated, and the greatest; `sums` [2]: of the values, and of their squares."""
    for piece, is_finite in _pieces(values):
        least, greatest = torch.where(is_finite, piece, math.inf).min(), torch.where(is_finite, piece, -math.inf).max()
        extremes.copy_(torch.maximum(extremes, torch.stack([-least, greatest])))
        known = torch.where(is_finite, piece, 0.0)
        sums.add_(torch.stack([known.sum(), known.square().sum()]))


def _edges(least: Tensor, greatest: Tensor) -> Tensor:
    """[tensors, 1] to [tensors, BINS + 1], as torch.linspace, which takes no tensors without reading them."""
    places = torch.arange(BINS + 1, dtype=torch.float64, device=least.device)
    width = (greatest - least) / BINS
    return torch.where(places <= BINS // 2, least + width * places, greatest - width * (BINS - places))


def _add_counts(values: Tensor | None, edges: Tensor, counts: Tensor) -> None:
    """`counts` [BINS]: how many values each bin has.

    Not with bincount, for which the host waits. Most gradients lie in one bin, and a GPU adds to one place of its
    memory one value after the other, so that each bin has many places here.
    """
    for piece, is_finite in _pieces(values):
        bins = torch.bucketize(piece, edges[1:-1], right=True)
        lanes = torch.arange(len(piece), device=piece.device) % _LANES
        found = counts.new_zeros(BINS * _LANES).index_add_(0, bins * _LANES + lanes, is_finite.to(counts.dtype))
        counts.add_(found.view(BINS, _LANES).sum(1))


def _pieces(values: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The values in fp64, flat, in pieces, and which of them are finite; none is empty."""
    if values is not None and values.numel():
        for part in values.detach().flatten().split(_PIECE):
            piece = part.double()
            yield piece, piece.isfinite()
