"""A batch as it is sent from a loader worker to the trainer's process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from modules.data.batch import Batch
from modules.data.index.problems import Problem
from modules.torch_compat import shared_storage

ALIGNMENT_BYTES = 64  # of the start of each tensor


@dataclass(frozen=True)
class PackedBatch:
    """All tensors of a batch in one buffer.

    Each tensor shared between two processes costs a handshake with the worker, which is busy: on 2 cores a batch of 7
    tensors took 7.7 ms to arrive, and as one buffer 3.9 ms. A slot, which both processes have from the start, needs
    none.
    """

    buffer: Tensor | NDArray[np.uint8]  # uint8 [bytes], in shared memory; an array if that is full; empty if in a slot
    slot: int | None
    layout: tuple[tuple[torch.dtype, torch.Size], ...]  # of ids, seeds, weights, then of every name
    names: tuple[str, ...]
    is_last_of_step: bool
    step_samples: int
    problems: tuple[Problem, ...]
    structure: object

    @classmethod
    def pack(cls, batch: Batch, slots: Tensor | None = None, slot: int = 0) -> PackedBatch:
        """Copy the tensors of `batch` into one buffer, or into one of the `slots`, uint8 [N, bytes], if they fit."""
        tensors = [batch.ids, batch.seeds, batch.weights, *batch.tensors.values()]
        layout = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        size = sum(map(_aligned_bytes, layout))
        in_slot = slots is not None and size <= slots.shape[1]
        packed = cls(
            buffer=np.empty(0, np.uint8) if in_slot else _new_buffer(size),
            slot=slot if in_slot else None,
            layout=layout,
            names=tuple(batch.tensors),
            is_last_of_step=batch.is_last_of_step,
            step_samples=batch.step_samples,
            problems=batch.problems,
            structure=batch.structure,
        )
        buffer = packed.buffer if slots is None or not in_slot else slots[slot]
        for view, tensor in zip(packed._views(buffer), tensors, strict=True):
            view.copy_(tensor)
        return packed

    def unpack(self, slots: Tensor | None = None) -> Batch:
        """The batch; its tensors are views of the buffer, or of a copy of its slot, which may then be written again."""
        buffer = self.buffer
        if slots is not None and self.slot is not None:
            buffer = slots[self.slot, : sum(map(_aligned_bytes, self.layout))].clone()
        ids, seeds, weights, *others = self._views(buffer)
        tensors = dict(zip(self.names, others, strict=True))
        return Batch(
            tensors, ids, seeds, weights, self.is_last_of_step, self.step_samples, self.problems, self.structure
        )

    def pin_memory(self) -> PackedBatch:
        """Called by the DataLoader if pin_memory is on."""
        return replace(self, buffer=torch.as_tensor(self.buffer).pin_memory())

    def _views(self, given: Tensor | NDArray[np.uint8]) -> Iterator[Tensor]:
        buffer = torch.as_tensor(given)
        starts = accumulate(map(_aligned_bytes, self.layout), initial=0)
        for (dtype, shape), start in zip(self.layout, starts, strict=False):
            yield buffer[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _new_buffer(size: int) -> Tensor | NDArray[np.uint8]:
    """`size` bytes of shared memory, or of this process, which are then sent through the queue's pipe.

    Left to torch, a full /dev/shm is noticed by the queue's thread, which prints a traceback and drops the batch, and
    the trainer waits for it for ever.
    """
    try:
        return torch.empty(0, dtype=torch.uint8).set_(shared_storage(size))
    except RuntimeError as error:
        _log_full(str(error).split(" for file")[0])
        return np.empty(size, np.uint8)


@cache
def _log_full(error: str) -> None:
    text = "Batches are sent without shared memory, which is slower (in a container: --shm-size=8g): %s"
    logging.getLogger(__name__).warning(text, error)


def _aligned_bytes(entry: tuple[torch.dtype, torch.Size]) -> int:
    dtype, shape = entry
    return -(-shape.numel() * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
