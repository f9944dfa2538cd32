"""A copy of a training state in host memory, which a thread writes while training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from modules.checkpoint import TrainingState


class StateCopy:
    """Host memory that is used again from copy to copy: pinned for what comes from a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, state: TrainingState) -> TrainingState:
        """A copy that training does not change; it is valid until the next one is taken.

        Raises RuntimeError or MemoryError if the memory is not enough.
        """
        former, self._buffers = self._buffers, {}

        def copied(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: self._copy(f"{kind}/{name}", tensor.detach(), former) for name, tensor in tensors.items()}

        copy = replace(
            state,
            weights=copied("weights", state.weights),
            ema=None if state.ema is None else copied("ema", state.ema),
            optimizer=replace(state.optimizer, tensors=copied("optimizer", state.optimizer.tensors)),
        )
        for device in {tensor.device for tensor in tensors_of(state) if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copy

    def _copy(self, key: str, tensor: Tensor, former: dict[str, Tensor]) -> Tensor:
        buffer = former.pop(key, None)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._buffers[key] = buffer
        return buffer.copy_(tensor, non_blocking=True)


def tensors_of(state: TrainingState) -> Iterator[Tensor]:
    """All tensors that a backup of `state` holds."""
    yield from state.weights.values()
    yield from (state.ema or {}).values()
    yield from state.optimizer.tensors.values()


def size_of(state: TrainingState) -> int:
    """Bytes of all its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
