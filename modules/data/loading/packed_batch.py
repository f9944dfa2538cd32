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

ALIGNMENT_BYTES = 64  # of the start of each tensor


@dataclass(frozen=True)
class PackedBatch:
    """All tensors of a batch in one buffer.

    Each tensor shared between two processes costs a handshake of up to a millisecond: on 2 cores a batch of 7 tensors
    took 2.1 ms of the receiver's CPU time and 7.7 ms to arrive, as one buffer 1.3 ms and 3.9 ms.
    """

    buffer: Tensor | NDArray[np.uint8]  # uint8 [bytes], in shared memory; an array if that is full
    layout: tuple[tuple[torch.dtype, torch.Size], ...]  # of ids, seeds, weights, then of every name
    names: tuple[str, ...]
    is_last_of_step: bool
    step_samples: int
    problems: tuple[Problem, ...]
    structure: object

    @classmethod
    def pack(cls, batch: Batch) -> PackedBatch:
        """Copy the tensors of `batch` into one buffer."""
        tensors = [batch.ids, batch.seeds, batch.weights, *batch.tensors.values()]
        layout = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        packed = cls(
            buffer=_new_buffer(sum(map(_aligned_bytes, layout))),
            layout=layout,
            names=tuple(batch.tensors),
            is_last_of_step=batch.is_last_of_step,
            step_samples=batch.step_samples,
            problems=batch.problems,
            structure=batch.structure,
        )
        for view, tensor in zip(packed._views(), tensors, strict=True):
            view.copy_(tensor)
        return packed

    def unpack(self) -> Batch:
        """The batch; its tensors are views of the buffer."""
        ids, seeds, weights, *others = self._views()
        tensors = dict(zip(self.names, others, strict=True))
        return Batch(
            tensors, ids, seeds, weights, self.is_last_of_step, self.step_samples, self.problems, self.structure
        )

    def pin_memory(self) -> PackedBatch:
        """Called by the DataLoader if pin_memory is on."""
        return replace(self, buffer=torch.as_tensor(self.buffer).pin_memory())

    def _views(self) -> Iterator[Tensor]:
        buffer = torch.as_tensor(self.buffer)
        starts = accumulate(map(_aligned_bytes, self.layout), initial=0)
        for (dtype, shape), start in zip(self.layout, starts, strict=False):
            yield buffer[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _new_buffer(size: int) -> Tensor | NDArray[np.uint8]:
    """`size` bytes of shared memory, or of this process, which are then sent through the queue's pipe.

    Left to torch, a full /dev/shm is noticed by the queue's thread, which prints a traceback and drops the batch, and
    the trainer waits for it for ever.
    """
    try:
        return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))  # type: ignore[call-overload]
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
