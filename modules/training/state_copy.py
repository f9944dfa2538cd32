"""A copy of a training state in host memory, which a thread writes while training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint import TrainingState
from modules.training.pinned_memory import pinned_memory

_ALIGNMENT: Final = 64  # bytes, of a tensor's place in the memory


class StateCopy:
    """Host memory that is used again from copy to copy: pinned for what comes from a GPU."""

    def __init__(self) -> None:
        self._memory: dict[torch.device, Tensor] = {}  # uint8 [bytes], by where the tensors come from

    def take(self, state: TrainingState) -> TrainingState:
        """A copy that training does not change; it is valid until the next one is taken.

        Raises OSError, RuntimeError or MemoryError if the memory is not enough.
        """
        self._fit(state)
        used = dict.fromkeys(self._memory, 0)

        def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: copy_of(tensor.detach()) for name, tensor in tensors.items()}

        def copy_of(tensor: Tensor) -> Tensor:
            start = used[tensor.device]
            used[tensor.device] += _room(tensor)
            place = self._memory[tensor.device][start : start + tensor.nbytes]
            return place.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)

        try:
            return replace(
                state,
                weights=copied(state.weights),
                ema=None if state.ema is None else copied(state.ema),
                optimizer=replace(state.optimizer, tensors=copied(state.optimizer.tensors)),
            )
        finally:
            for device in used:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)

    def _fit(self, state: TrainingState) -> None:
        """Let the memory have the size that a copy of `state` needs."""
        sizes: dict[torch.device, int] = {}
        for tensor in tensors_of(state):
            sizes[tensor.device] = sizes.get(tensor.device, 0) + _room(tensor)
        self._memory = {device: each for device, each in self._memory.items() if len(each) == sizes.get(device)}
        for device, size in sizes.items():
            if device not in self._memory:
                is_pinned = device.type == "cuda" and size > 0
                self._memory[device] = (
                    pinned_memory(size, device) if is_pinned else torch.empty(size, dtype=torch.uint8)
                )


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def tensors_of(state: TrainingState) -> Iterator[Tensor]:
    """All tensors that a backup of `state` holds."""
    yield from state.weights.values()
    yield from (state.ema or {}).values()
    yield from state.optimizer.tensors.values()


def size_of(state: TrainingState) -> int:
    """Bytes of all its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
