"""The dtype of the weights, the dtype that the forward computes in, and gradient scaling for fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal

import torch

from modules.diffusion.dtypes import HALF_DTYPES

Name = Literal["fp32", "tf32", "bf16", "fp16", "fp64"]

# Those that round anyway: TF32 keeps 10 bits of a mantissa like fp16, and bf16 has 7.
ROUNDING: Final = ("tf32", "bf16", "fp16")
FIRST_TF32_CAPABILITY: Final = (8, 0)  # Ampere
MAX_BENCHMARKED_SHAPES: Final = 16  # of images; cuDNN tries its algorithms once for each shape, which takes seconds


class Precision:
    """The precision of one run on one device.

    `tf32`: compute what is left in fp32, such as the autoencoder, in TF32; only where `can_use_tf32` on every rank.
    `attention`: see the setting attention_backend.
    """

    def __init__(
        self,
        name: Name,
        device: torch.device,
        scaler_class: type[torch.amp.GradScaler] = torch.amp.GradScaler,
        *,
        tf32: bool = False,
        attention: Literal["auto", "cudnn", "math"] = "auto",
    ) -> None:
        self.weights = weights_dtype(name)
        self.scaler = scaler_class(device.type, enabled=name == "fp16")
        self.device = device
        self.tf32 = tf32
        self._rounds = name in ROUNDING
        self._autocast = HALF_DTYPES.get(name)
        if device.type == "cuda":
            # torch's newer `cudnn.conv.fp32_precision` makes reading `cudnn.allow_tf32` an error, and with it every use
            # of `torch.backends.cudnn.flags`; these two agree with all of torch's ways to read them (torch 2.13).
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
            # without it a run is not repeated, nor resumed, to the bit (measured on an H100)
            torch.backends.cudnn.deterministic = not self._rounds
            # it gives NaN gradients (pytorch issue 196678, torch 2.11 to 2.13) and wrong outputs (issue 193893)
            torch.backends.cuda.enable_cudnn_sdp(attention == "cudnn")
            torch.backends.cuda.enable_flash_sdp(attention != "math")
            torch.backends.cuda.enable_mem_efficient_sdp(attention != "math")

    @property
    def computing(self) -> torch.dtype:
        """In which most of a forward is computed."""
        return self._autocast or self.weights

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward: mixed precision if the config asks for it."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._autocast)

    def benchmark_convolutions(self, shapes: int) -> None:
        """Let cuDNN choose the fastest algorithm for each of `shapes` image sizes by trying; not where results are
        to be exact or deterministic, because the choice may differ from run to run.
        """
        if self.device.type == "cuda":
            exact = not self._rounds or torch.are_deterministic_algorithms_enabled()
            few = shapes <= MAX_BENCHMARKED_SHAPES
            torch.backends.cudnn.benchmark = few and not exact and not torch.backends.cudnn.deterministic


def weights_dtype(name: Name) -> torch.dtype:
    """The dtype of trained weights."""
    return torch.float64 if name == "fp64" else torch.float32


def can_use_tf32(name: Name, device: torch.device) -> bool:
    """Whether this precision allows TF32 and the device has it: an NVIDIA GPU since 2020."""
    if name not in ROUNDING or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= FIRST_TF32_CAPABILITY
