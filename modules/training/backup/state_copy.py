"""A copy of a training state in host memory, which a thread writes while training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from modules.checkpoint import TrainingState
from modules.training.device.pinned_memory import host_places


class StateCopy:
    """Host memory that is used again from copy to copy: pinned for what comes from a GPU."""

    def __init__(self) -> None:
        self._places: list[Tensor] = []
        self._layout: list[object] = []  # of what they are for

    def take(self, state: TrainingState) -> TrainingState:
        """A copy that training does not change; it is valid until the next one is taken.

        Raises OSError, RuntimeError or MemoryError if the memory is not enough.
        """
        layout: list[object] = [(each.shape, each.dtype, each.device, each.stride()) for each in tensors_of(state)]
        if layout != self._layout:
            self._places = []  # first, so that there are never two
            self._places, self._layout = host_places(tensors_of(state)), layout
        places = iter(self._places)

        def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: next(places).copy_(tensor.detach(), non_blocking=True) for name, tensor in tensors.items()}

        try:  # in the order of `tensors_of`
            return replace(
                state,
                weights=copied(state.weights),
                ema=None if state.ema is None else copied(state.ema),
                optimizer=replace(state.optimizer, tensors=copied(state.optimizer.tensors)),
                outer=None if state.outer is None else copied(state.outer),
            )
        finally:
            for device in {tensor.device for tensor in tensors_of(state) if tensor.is_cuda}:
                torch.cuda.synchronize(device)


def tensors_of(state: TrainingState) -> Iterator[Tensor]:
    """All tensors that a backup of `state` holds."""
    yield from state.weights.values()
    yield from (state.ema or {}).values()
    yield from state.optimizer.tensors.values()
    yield from (state.outer or {}).values()


def size_of(state: TrainingState) -> int:
    """Bytes of all its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
