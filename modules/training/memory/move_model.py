"""Moving a model to its device: each tensor straight from its file into the dtype and layout that training wants."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from modules.config import ConfigError, TrainConfig
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.quantized import (
    QUANTIZED,
    QuantizedLinear,
    can_be_quantized,
    keep_in_host_memory_,
    quantize_,
)
from modules.distributed import RankGroup, is_sharded
from modules.families._family import Family
from modules.training.device.precision import weights_dtype
from modules.training.memory.block_offload import BlockOffload, offloaded_blocks
from modules.training.memory.quantize_once import quantize_once
from modules.training.methods.lora import make_contiguous
from modules.training.methods.submodules import submodule_of

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
    trained = weights_dtype(config.precision)
    usual = frozen_dtype(family, config)
    trained_layers = torch.bfloat16 if config.stochastic_rounding else trained
    given = {entry.part: entry.weights for entry in config.parts if entry.weights != "run"}
    # what is not quantised in a part is kept as the run computes
    rest = HALF_DTYPES.get(config.precision, trained)
    kept = {
        part: rest if weights in QUANTIZED else HALF_DTYPES.get(weights, trained) for part, weights in given.items()
    }
    quantized = {part: weights for part, weights in given.items() if weights in QUANTIZED}
    offloaded = offloaded_blocks(family.model, config.block_offload) if config.block_offload else []
    if config.block_offload and not offloaded:
        raise _nothing_to_offload(config)
    in_host_memory = {layer for block in offloaded for layer in block}
    chosen = None if within is None else set(within.modules())
    to_quantize = {
        module: quantized[part]
        for name, module in family.model.named_modules()
        if (part := submodule_of(name, family.submodules)) in quantized
        and (chosen is None or module in chosen)
        and can_be_quantized(name.removeprefix(f"{part}."), module, family.model.get_submodule(part))
    }
    if ranks is not None and device.type == "cpu":
        quantize_once(
            [(cast(nn.Linear, each), to_quantize[each]) for each in to_quantize if each not in in_host_memory], ranks
        )
    for name, module in family.model.named_modules():
        own = [weight for weight in module.parameters(recurse=False) if not is_sharded(weight)]
        if not (chosen is None or module in chosen):
            continue
        is_frozen_layer = isinstance(module, LAYERS) and not any(weight.requires_grad for weight in own)
        part = submodule_of(name, family.submodules)
        if isinstance(module, QuantizedLinear):
            module.move(device)
        elif module in to_quantize:
            quantize_(cast(nn.Linear, module), to_quantize[module], device)
            own = list(module.parameters(recurse=False))
        elif module in in_host_memory:
            keep_in_host_memory_(cast(nn.Linear, module), kept.get(part, usual))
            own = list(module.parameters(recurse=False))
        if module in in_host_memory and isinstance(module, QuantizedLinear) and module.lender is None:
            module._bits = module._bits.cpu()
        dtype = trained_layers if isinstance(module, LAYERS) else trained
        if is_frozen_layer:
            dtype = kept.get(part, usual)
        for weight in own:
            weight.data = _converted(weight.data, device, dtype, config)
        for key, buffer in module.named_buffers(recurse=False):
            setattr(module, key, _converted(buffer, device, dtype, config))
    if any(cast(QuantizedLinear, layer).lender is None for layer in in_host_memory):
        BlockOffload(cast(list[list[QuantizedLinear]], offloaded), device)
    make_contiguous(family.model if within is None else within)


def frozen_dtype(family: Family, config: TrainConfig) -> torch.dtype:
    """In which frozen linear and convolution layers are kept, unless `parts` says otherwise."""
    trained = weights_dtype(config.precision)
    return HALF_DTYPES.get(config.precision, trained) if family.half_frozen_weights else trained


def _nothing_to_offload(config: TrainConfig) -> ConfigError:
    return ConfigError(
        f"block_offload is {config.block_offload:g}, but the family {config.family!r} repeats no blocks that have "
        "frozen linear layers; set it to 0."
    )


def _converted(tensor: Tensor, device: torch.device, dtype: torch.dtype, config: TrainConfig) -> Tensor:
    moved = tensor.to(device, dtype if tensor.is_floating_point() else None)
    return moved.contiguous(memory_format=torch.channels_last) if config.channels_last and moved.dim() == 4 else moved
