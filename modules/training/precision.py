"""The dtype of the weights, the dtype that the forward computes in, and gradient scaling for fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from modules.diffusion.dtypes import HALF_DTYPES

Name = Literal["fp32", "tf32", "bf16", "fp16", "fp64"]


class Precision:
    """The precision of one run on one device."""

    def __init__(
        self, name: Name, device: torch.device, scaler_class: type[torch.amp.GradScaler] = torch.amp.GradScaler
    ) -> None:
        self.weights = torch.float64 if name == "fp64" else torch.float32
        self.scaler = scaler_class(device.type, enabled=name == "fp16")
        self._device_type = device.type
        self._autocast = HALF_DTYPES.get(name)
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            torch.backends.cudnn.allow_tf32 = name == "tf32"

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward: mixed precision if the config asks for it."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._autocast)
