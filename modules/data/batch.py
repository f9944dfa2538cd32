"""What travels between index, cache, loader, family and trainer: examples, micro-batch orders and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One view of one picture, cropped and resized to its bucket, as a family encodes it."""

    pixels: Tensor  # uint8 [3, H, W], RGB
    mask: Tensor | None  # uint8 [1, H, W], 255 where the loss counts fully; None where the picture has no mask
    captions: tuple[str, ...]
    original_size: tuple[int, int]  # height, width of the file
    crop: tuple[int, int]  # top, left, in pixels of the resized picture before cropping
    flipped: bool


class Draw(Protocol):
    """Turns one cached example into what `loss` needs; runs in loader workers, so it is picklable and holds no model.

    Every random choice (noise, timestep) comes from `generator`, which is seeded per sample.
    """

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class MicroBatch:
    """The order for one micro-batch: which samples of which step one rank computes at once."""

    rows: tuple[int, ...]  # index rows, all of one bucket
    seeds: tuple[int, ...]  # one per sample, a pure function of (seed, epoch, position in the epoch)
    weights: tuple[float, ...]
    last: bool  # the rank's last micro-batch of this step: the one that synchronises and updates
    step_weight: float  # sum of the weights of the whole step, over all ranks
    step_samples: int  # number of samples of the whole step, over all ranks


@dataclass(frozen=True)
class Batch:
    """One micro-batch, ready for `family.loss`."""

    tensors: dict[str, Tensor]  # each [B, ...]
    ids: Tensor  # int64 [B], index rows
    seeds: Tensor  # int64 [B]
    weights: Tensor  # float64 [B]
    last: bool
    step_weight: float
    step_samples: int

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Batch:
        """The batch on `device`, floating-point tensors as `dtype`; copies from pinned memory do not block."""
        moved = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking=True)
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=moved, weights=self.weights.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Called by the DataLoader where pin_memory is on."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.tensors.items()}
        return replace(self, tensors=pinned, weights=self.weights.pin_memory())

    def split(self, limit: int) -> Iterator[Batch]:
        """The same samples in pieces of at most `limit`; only the final piece keeps `last`."""
        for start in range(0, len(self), limit):
            part = slice(start, start + limit)
            yield replace(
                self,
                tensors={name: tensor[part] for name, tensor in self.tensors.items()},
                ids=self.ids[part],
                seeds=self.seeds[part],
                weights=self.weights[part],
                last=self.last and start + limit >= len(self),
            )
