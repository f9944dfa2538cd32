"""What frozen encoders give samples: computed once in a run, since neither the prompts nor the encoders change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = Mapping[str, Tensor]


class SampleInputs:
    """The outputs of frozen encoders by what they were given, on the CPU: at most a few megabytes per prompt."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Tensors] = {}

    def get(self, name: str, given: Tensor, device: torch.device, compute: Callable[[Tensor], Tensors]) -> Tensors:
        """What `compute` returns for `given`, the input of encoder `name`, on `device`; called once for equal inputs.

        Results under autocast are told from those without, and those of a CPU from those of a GPU.
        """
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        key = (name, tuple(given.shape), given.numpy().tobytes(), device.type, dtype)
        if key not in self._known:
            self._known[key] = {name: tensor.cpu() for name, tensor in compute(given.to(device)).items()}
        return {name: tensor.to(device) for name, tensor in self._known[key].items()}
