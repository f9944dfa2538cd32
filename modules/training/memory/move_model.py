"""Moving a model to its device: each tensor straight from its file into the dtype and layout that training wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor, nn

from modules.config import ConfigError, TrainConfig
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.quantized import (
    BITS_DTYPES,
    QUANTIZED,
    SCALE_BYTES,
    QuantizedLinear,
    can_be_quantized,
    keep_in_host_memory_,
    quantize_,
    quantized_shape,
    replace_weight_,
)
from modules.distributed import RankGroup, fill_once_per_machine, is_sharded
from modules.families._family import Family
from modules.training.device.precision import weights_dtype
from modules.training.memory.block_offload import BlockOffload, offloaded_blocks
from modules.training.methods.lora import make_contiguous
from modules.training.methods.submodules import submodule_of
from modules.training.methods.training_adapter import TrainingAdapter

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CPU: Final = torch.device("cpu")
_ALIGNMENT: Final = 256  # bytes


@torch.no_grad()
def move_model(
    family: Family,
    config: TrainConfig,
    device: torch.device,
    within: nn.Module | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Move `family.model` in place to `device`, or only the part of it that is `within`, without what is sharded.

    Frozen linear and convolution layers get the format that `parts` asks for, since autocast computes with either, and
    all else that of trained weights: with `stochastic_rounding` bf16 in these layers. One tensor at a time: those of a
    file take no memory before, and none twice. With `ranks`, all of which call it, what is quantised in host memory is
    there once per machine.
    """
    modules = [(submodule_of(name, family.submodules), name, module) for name, module in family.model.named_modules()]
    if within is not None:
        chosen = set(within.modules())
        modules = [each for each in modules if each[2] in chosen]
    weights = {entry.part: entry.weights for entry in config.parts if entry.weights != "run"}
    to_quantize = {
        module: weights[part]
        for part, name, module in modules
        if weights.get(part) in QUANTIZED
        and can_be_quantized(name.removeprefix(f"{part}."), module, family.model.get_submodule(part))
    }
    offloaded = _offloaded(family, config)
    in_host_memory = {layer for block in offloaded for layer in block}
    if ranks is not None and device.type == "cpu":
        layers = [(cast(nn.Linear, each), to_quantize[each]) for each in to_quantize if each not in in_host_memory]
        quantize_once(layers, ranks)
    dtypes = _Dtypes.of(family, config, weights)
    for part, _, module in modules:
        dtype = dtypes.of_module(module, part)
        _change_layer(module, to_quantize.get(module), dtype, device, in_host_memory=module in in_host_memory)
        for weight in _whole_weights(module):
            weight.data = _converted(weight.data, device, dtype, config)
        for key, buffer in module.named_buffers(recurse=False):
            setattr(module, key, _converted(buffer, device, dtype, config))
    if any(layer.lender is None for layer in in_host_memory):
        BlockOffload(offloaded, device)
    make_contiguous(family.model if within is None else within)


@dataclass(frozen=True)
class _Dtypes:
    """Of a model's weights."""

    trained: torch.dtype
    trained_layers: torch.dtype
    frozen_layers: torch.dtype
    frozen_layers_of: Mapping[str, torch.dtype]  # in the parts that have their own

    @classmethod
    def of(cls, family: Family, config: TrainConfig, weights: Mapping[str, str]) -> _Dtypes:
        """`weights` of the parts, as `parts` gives them; what is not quantised in one is kept as the run computes."""
        trained = weights_dtype(config.precision)
        computed = HALF_DTYPES.get(config.precision, trained)
        return cls(
            trained,
            torch.bfloat16 if config.stochastic_rounding else trained,
            frozen_dtype(family, config),
            {part: computed if kind in QUANTIZED else HALF_DTYPES.get(kind, trained) for part, kind in weights.items()},
        )

    def of_module(self, module: nn.Module, part: str) -> torch.dtype:
        """Of a module's own weights and buffers."""
        if not isinstance(module, (*LAYERS, TrainingAdapter)):
            return self.trained
        if any(weight.requires_grad for weight in _whole_weights(module)):
            return self.trained_layers
        return self.frozen_layers_of.get(part, self.frozen_layers)


def _whole_weights(module: nn.Module) -> list[nn.Parameter]:
    """Those of its own that are not sharded."""
    return [weight for weight in module.parameters(recurse=False) if not is_sharded(weight)]


def _offloaded(family: Family, config: TrainConfig) -> list[list[QuantizedLinear]]:
    """The layers of each block that block_offload keeps in host memory. Raises ConfigError if there is none."""
    if not config.block_offload:
        return []
    if not (blocks := offloaded_blocks(family.model, config.block_offload)):
        raise ConfigError(
            f"block_offload is {config.block_offload:g}, but the family {config.family!r} repeats no blocks that have "
            "frozen linear layers; set it to 0."
        )
    return cast(list[list[QuantizedLinear]], blocks)  # which they become below


def _change_layer(
    module: nn.Module, weights: str | None, dtype: torch.dtype, device: torch.device, *, in_host_memory: bool
) -> None:
    """Quantise a layer to `weights`, or keep it in host memory as `dtype`; move one that is quantised already."""
    if isinstance(module, QuantizedLinear):
        module.move(device)
    elif weights is not None:
        quantize_(cast(nn.Linear, module), weights, device)
    elif in_host_memory:
        keep_in_host_memory_(cast(nn.Linear, module), dtype)
    if in_host_memory and isinstance(module, QuantizedLinear) and module.lender is None:
        module._bits = module._bits.cpu()


def frozen_dtype(family: Family, config: TrainConfig) -> torch.dtype:
    """In which frozen linear and convolution layers are kept, unless `parts` says otherwise."""
    trained = weights_dtype(config.precision)
    return HALF_DTYPES.get(config.precision, trained) if family.half_frozen_weights else trained


def _converted(tensor: Tensor, device: torch.device, dtype: torch.dtype, config: TrainConfig) -> Tensor:
    moved = tensor.to(device, dtype if tensor.is_floating_point() else None)
    return moved.contiguous(memory_format=torch.channels_last) if config.channels_last and moved.dim() == 4 else moved


def quantize_once(layers: Sequence[tuple[nn.Linear, str]], ranks: RankGroup) -> None:
    """Quantise frozen layers in place, each to its kind, to the same bits as `quantize_`; called by all ranks.

    What is kept lies in one piece of memory, also for a single rank: among the tensors of a step, the allocator would
    leave gaps between the layers that no tensor fits into.
    """
    if not layers:
        return
    starts, size = [], 0
    for layer, kind in layers:
        rows, width = quantized_shape(layer, kind)
        starts.append((size, size + _aligned(rows * width)))
        size = starts[-1][1] + _aligned(rows * SCALE_BYTES)

    def places(memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Bits and scales of each layer, as views."""
        found = []
        for (layer, kind), (start, of_scales) in zip(layers, starts, strict=True):
            rows, width = quantized_shape(layer, kind)
            bits = memory[start : start + rows * width].view(BITS_DTYPES[kind]).view(rows, width)
            scales = memory[of_scales : of_scales + rows * SCALE_BYTES].view(torch.float32).view(rows, 1)
            found.append((bits, scales))
        return found

    def fill(memory: Tensor) -> None:
        for (layer, kind), place in zip(layers, places(memory), strict=True):
            quantize_(layer, kind, _CPU, place)

    memory = fill_once_per_machine("quantised weights", size, fill, ranks)
    for (layer, _), (bits, scales) in zip(layers, places(memory), strict=True):
        replace_weight_(layer, bits, scales)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
