"""A batch as it is sent from a loader worker to the trainer's process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from modules.data.batch import Batch, Layout
from modules.data.index.problems import Problem
from modules.torch_compat import shared_storage

ALIGNMENT_BYTES = 64  # of the start of each tensor
SLOT_BYTES = 1 << 20  # of a larger batch, the handshake is a small part


@dataclass(frozen=True)
class PackedBatch:
    """All tensors of a batch in one buffer.

    Each tensor shared between two processes costs a handshake with the worker, which is busy: on 2 cores a batch of 7
    tensors took 7.7 ms to arrive, and as one buffer 3.9 ms. A slot, which both processes have from the start, needs
    none.
    """

    buffer: Tensor | NDArray[np.uint8]  # uint8 [bytes], in shared memory; an array if that is full; empty if in a slot
    slot: int | None
    layout: Layout  # of ids, seeds, weights, then of every name
    names: tuple[str, ...]
    is_last_of_step: bool
    step_samples: int
    problems: tuple[Problem, ...]
    structure: object

    @classmethod
    def pack(cls, batch: Batch, slots: Tensor | None = None, slot: int = 0) -> PackedBatch:
        """Copy the tensors of `batch` into one buffer, or into one of the `slots`, uint8 [N, bytes], if they fit; those
        made in `large_places` stay there."""
        tensors = [batch.ids, batch.seeds, batch.weights, *batch.tensors.values()]
        layout = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        size = sum(map(_aligned_bytes, layout))
        in_slot = slots is not None and size <= slots.shape[1]
        made = None if in_slot else _own_buffer(tensors[3:], layout, size)
        packed = cls(
            buffer=np.empty(0, np.uint8) if in_slot else _new_buffer(size) if made is None else made,
            slot=slot if in_slot else None,
            layout=layout,
            names=tuple(batch.tensors),
            is_last_of_step=batch.is_last_of_step,
            step_samples=batch.step_samples,
            problems=batch.problems,
            structure=batch.structure,
        )
        buffer = packed.buffer if slots is None or not in_slot else slots[slot]
        for view, tensor in zip(_views(buffer, layout), tensors, strict=True):
            if made is None or view.data_ptr() != tensor.data_ptr():
                view.copy_(tensor)
        return packed

    def unpack(self, slots: Tensor | None = None) -> Batch:
        """The batch; its tensors are views of the buffer, or of a copy of its slot, which may then be written again."""
        buffer = self.buffer
        if slots is not None and self.slot is not None:
            buffer = slots[self.slot, : sum(map(_aligned_bytes, self.layout))].clone()
        ids, seeds, weights, *others = _views(buffer, self.layout)
        tensors = dict(zip(self.names, others, strict=True))
        return Batch(
            tensors, ids, seeds, weights, self.is_last_of_step, self.step_samples, self.problems, self.structure
        )

    def pin_memory(self) -> PackedBatch:
        """Called by the DataLoader if pin_memory is on."""
        return replace(self, buffer=torch.as_tensor(self.buffer).pin_memory())


def large_places(layout: Layout) -> list[Tensor] | None:
    """Where a worker makes the tensors of a batch, [B, ...] each, so that `PackedBatch.pack` has none to copy; None if
    it is small, or there is no room."""
    samples = layout[0][1][:1] if layout else torch.Size([0])
    whole: Layout = ((torch.int64, samples), (torch.int64, samples), (torch.float64, samples), *layout)
    size = sum(map(_aligned_bytes, whole))
    buffer = _new_buffer(size) if size > SLOT_BYTES else None
    return list(_views(buffer, whole))[3:] if isinstance(buffer, Tensor) else None


def _own_buffer(tensors: Sequence[Tensor], layout: Layout, size: int) -> Tensor | None:
    """The buffer of `size` bytes that the tensors of a batch are in already, behind room for three others."""
    storage = tensors[-1].untyped_storage() if tensors else None
    if storage is None or storage.nbytes() != size or not storage.is_shared():
        return None
    buffer = torch.empty(0, dtype=torch.uint8).set_(storage)
    places = list(_views(buffer, layout))[3:]
    is_in_place = all(a.data_ptr() == b.data_ptr() and b.is_contiguous() for a, b in zip(places, tensors, strict=True))
    return buffer if is_in_place else None


def _views(given: Tensor | NDArray[np.uint8], layout: Layout) -> Iterator[Tensor]:
    buffer = torch.as_tensor(given)
    starts = accumulate(map(_aligned_bytes, layout), initial=0)
    for (dtype, shape), start in zip(layout, starts, strict=False):
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
