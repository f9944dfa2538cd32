"""Autocast as a GPU does it, for forwards of fake tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from modules.torch_compat import tree_map

# The operations that networks and losses use of those that CUDA's autocast computes in fp32 and the CPU's does not
# (torch's documentation of torch.amp, "CUDA Ops that can autocast to float32"). Their inputs and outputs are what
# autograd keeps: a UNet's group norms make a quarter of its activations.
_IN_FP32: Final = {"cross_entropy", "cumsum", "exp", "group_norm", "layer_norm", "log", "log_softmax", "mse_loss"}
_IN_FP32_TOO: Final = {"norm", "normalize", "pow", "reciprocal", "rsqrt", "softmax", "softplus", "sum"}


class CudaAutocast(TorchFunctionMode):
    """Within autocast of the CPU: compute in fp32 what CUDA's would."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if getattr(func, "__name__", "") in _IN_FP32 | _IN_FP32_TOO:
            args, kwargs = tree_map(_in_fp32, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _in_fp32(value: object) -> object:
    is_half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if isinstance(value, Tensor) and is_half else value
