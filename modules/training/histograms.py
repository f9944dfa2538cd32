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
from modules.training.triggers import TimeTrigger, is_due

BINS: Final = 64
_PIECE: Final = 1 << 22  # values that are converted to fp64 at a time: 32 MiB


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
    at a time; the host waits for it twice. `over_shards` combines what the ranks found in their shards of `tensors`,
    whose names are the same on all of them.
    """
    if not tensors:
        return {}
    device = next((values.device for values in tensors.values() if values is not None), torch.device("cpu"))
    moments = torch.stack([_moments(values, device) for values in tensors.values()])  # [tensors, 4]
    extremes = over_shards(moments[:, :2], "max").tolist()
    sums = over_shards(moments[:, 2:], "sum").tolist()
    ranges = [(-negated, greatest) for negated, greatest in extremes]
    counts = torch.stack(
        [
            _counts(values, least, greatest, device)
            for values, (least, greatest) in zip(tensors.values(), ranges, strict=True)
        ]
    )
    found = {}
    by_tensor = zip(tensors, ranges, sums, over_shards(counts, "sum").tolist(), strict=True)
    for name, (least, greatest), (total, squares), bins in by_tensor:
        if least <= greatest:
            edges = torch.linspace(least, greatest, BINS + 1, dtype=torch.float64)
            found[name] = Histogram(least, greatest, total, squares, edges[1:].tolist(), [int(each) for each in bins])
    return found


def _moments(values: Tensor | None, device: torch.device) -> Tensor:
    """The least value negated, the greatest, the sum and the sum of squares, [4], in fp64."""
    empty = torch.tensor([-math.inf, -math.inf, 0.0, 0.0], dtype=torch.float64, device=device)
    pieces = [
        torch.stack([-piece.min(), piece.max(), piece.sum(), piece.square().sum()]) for piece in _finite_pieces(values)
    ]
    by_piece = torch.stack([empty, *pieces])
    return torch.cat([by_piece[:, :2].amax(0), by_piece[:, 2:].sum(0)])


def _counts(values: Tensor | None, least: float, greatest: float, device: torch.device) -> Tensor:
    """How many values each bin has, [BINS], in fp64, which is exact up to 2^53 and which every backend sums."""
    counts = torch.zeros(BINS, dtype=torch.float64, device=device)
    if least <= greatest:
        edges = torch.linspace(least, greatest, BINS + 1, dtype=torch.float64, device=device)
        for piece in _finite_pieces(values):
            counts += torch.bincount(torch.bucketize(piece, edges[1:-1], right=True), minlength=BINS)
    return counts


def _finite_pieces(values: Tensor | None) -> Iterator[Tensor]:
    """The finite values in fp64, flat, in pieces; none is empty."""
    if values is None:
        return
    for part in values.detach().flatten().split(_PIECE):
        piece = part.double()
        piece = piece[piece.isfinite()]
        if piece.numel():
            yield piece
