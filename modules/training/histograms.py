"""Histograms of the trained weights and their gradients for TensorBoard, in the steps in which they are due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
    """Rank 0's weights and gradients when `every` is due; in any other step nothing is read or computed.

    With fully_sharded these are rank 0's own shards, so that no other rank has to take part.
    """

    def __init__(self, every: Interval, weights: Weights, report: Report) -> None:
        self._every, self._weights, self._report = every, weights, report
        self._timer = TimeTrigger({"histograms": every})

    def report_if_due(self, before: Progress, after: Progress) -> None:
        """To be called in the step from `before` to `after`, when its gradients are clipped and not applied yet."""
        if is_due(self._every, before, after) or self._timer.due():
            self._report.histograms(self._all, after.step)

    def _all(self) -> dict[str, Histogram]:
        """By the tags that TensorBoard shows; a weight without a gradient in this step has none."""
        found: dict[str, Histogram] = {}
        for name, weight in self._weights.local.items():
            for tag, values in ((f"weights/{name}", weight), (f"gradients/{name}", weight.grad)):
                if values is not None and (counted := histogram(values)) is not None:
                    found[tag] = counted
        return found


@torch.no_grad()
def histogram(values: Tensor) -> Histogram | None:
    """The finite `values`, of any shape, in 64 equal bins between the least and the greatest; None without any.

    Computed in fp64 on the device of `values`, some millions at a time; the host waits for it.
    """
    sums = [
        torch.stack([piece.min(), piece.max(), piece.sum(), piece.square().sum()]) for piece in _finite_pieces(values)
    ]
    if not sums:
        return None
    by_piece = torch.stack(sums)
    low, high = float(by_piece[:, 0].min()), float(by_piece[:, 1].max())
    total, squares = by_piece[:, 2:].sum(0).tolist()
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64, device=values.device)
    counts = torch.zeros(BINS, dtype=torch.int64, device=values.device)
    for piece in _finite_pieces(values):
        counts += torch.bincount(torch.bucketize(piece, edges[1:-1], right=True), minlength=BINS)
    return Histogram(low, high, total, squares, edges[1:].tolist(), counts.tolist())


def _finite_pieces(values: Tensor) -> Iterator[Tensor]:
    """The finite values in fp64, flat, in pieces; none is empty."""
    for part in values.detach().flatten().split(_PIECE):
        piece = part.double()
        piece = piece[piece.isfinite()]
        if piece.numel():
            yield piece
