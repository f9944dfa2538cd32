"""Whether the numbers of a model are finite: neither NaN nor infinite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from modules.config import ConfigError
from modules.diffusion.quantized import QuantizedLinear

ADVICE: Final = "Copy or download it again, or use it in another number format: in fp16 large weights overflow."
_PIECE: Final = 1 << 24  # numbers that are looked at together


@torch.no_grad()
def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor of any dtype, on any device, are finite.

    A sum is finite only if all its terms are, and is as fast as memory: 2 to 6 GB/s on one slow core, where `isfinite`
    has 0.1. It may overflow, so if it is not, each number is looked at.
    """
    if not tensor.is_floating_point():
        return True
    numbers = tensor.float() if tensor.element_size() == 1 else tensor  # torch adds no fp8
    if bool(numbers.sum().isfinite()):
        return True
    return all(bool(piece.isfinite().all()) for piece in numbers.reshape(-1).split(_PIECE))


def names_not_finite(module: nn.Module) -> Iterator[str]:
    """The names of the parameters and buffers that are not finite; of sharded ones this rank looks at its own part."""
    for name, tensor in _tensors(module):
        if not is_finite(cast("Any", tensor).to_local() if hasattr(tensor, "to_local") else tensor):
            yield name.replace("_orig_mod.", "").replace(".base_layer", "")  # of torch.compile and peft
    for name, buffer in module.named_buffers():
        is_number = buffer.is_floating_point() and buffer.element_size() > 1  # no fp8, whose scales show it
        if is_number and bool(buffer.isnan().any()):  # infinity may belong to a mask
            yield name


def require_finite(network: nn.Module, name: str, source: Path) -> None:
    """Raises ConfigError if a number of the network `name` of a base model is not finite."""
    if (damaged := next(names_not_finite(network), None)) is not None:
        raise ConfigError(
            f"base_model: the weights of {name} of the model in {str(source)!r} are not finite (NaN or infinity) in "
            f"{damaged!r}.",
            ADVICE,
        )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    for name, layer in module.named_modules():
        if isinstance(layer, QuantizedLinear):  # whose scales show it
            yield f"{name}.weight", layer._bits if layer._scales is None else layer._scales
