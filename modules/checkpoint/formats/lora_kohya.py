"""kohya's layout: `lora_unet_down_blocks_0_....lora_down.weight`, with `alpha` and `dora_scale` as tensors beside it.

The UNet of SDXL has Stability AI's names there, `lora_unet_input_blocks_4_1_...`; both kinds are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.kohya_names import dotted, flat, original
from modules.checkpoint.formats.lora_weights import (
    AdapterNames,
    LoraWeights,
    inner_name,
    outer_name,
    part_of_key,
    tensor_beside,
)
from modules.checkpoint.formats.tensor_files import Planned, planned
from modules.config import ConfigError

_UNET: Final = "unet"


def kohya_tensors(adapters: Sequence[LoraWeights], names: AdapterNames, dtype: torch.dtype) -> dict[str, Planned]:
    """What a file holds. Raises ConfigError where the layout has no name for a module."""
    tensors = {}
    for stem, adapter in zip(kohya_stems(adapters, names), _with_one_alpha(adapters), strict=True):
        tensors[f"{stem}.lora_down.weight"] = planned(adapter.down, dtype)
        tensors[f"{stem}.lora_up.weight"] = planned(adapter.up, dtype)
        tensors[f"{stem}.alpha"] = planned(torch.tensor(float(adapter.alpha)), torch.float32)
        if adapter.magnitude is not None:
            # One length for each row, as LyCORIS writes it with wd_on_output.
            shape = [-1, *[1] * (adapter.down.dim() - 1)]
            tensors[f"{stem}.dora_scale"] = planned(adapter.magnitude.reshape(shape), dtype)
    return tensors


def kohya_stems(adapters: Sequence[LoraWeights], names: AdapterNames) -> list[str]:
    """What the keys of each adapter begin with. Raises ConfigError where the layout has no name for a module."""
    with_originals = has_original_names(adapters, names)
    stems = []
    for adapter in adapters:
        name = original(adapter.module) if with_originals and adapter.part == _UNET else flat(outer_name(adapter))
        if name is None:
            raise ConfigError(
                f"lora_layouts: the module {adapter.module!r} cannot be named in the kohya layout, which joins all "
                "words by _.",
                "Choose the layout diffusers alone.",
            )
        stems.append(f"{names[adapter.part][1]}_{name}")
    return stems


def has_original_names(adapters: Sequence[LoraWeights], names: AdapterNames) -> bool:
    """Whether the UNet gets Stability AI's names: all of it or nothing, as readers expect one kind in a file.

    A UNet with two text encoders is SDXL's; one that was cut down or extended keeps diffusers' names.
    """
    modules = [adapter.module for adapter in adapters if adapter.part == _UNET]
    return "text_encoder_2" in names and bool(modules) and all(original(module) is not None for module in modules)


def _with_one_alpha(adapters: Sequence[LoraWeights]) -> list[LoraWeights]:
    """The same adapters, all with the alpha of the first: diffusers loses alphas that differ (get_peft_kwargs)."""
    alpha = adapters[0].alpha if adapters else 1.0
    return [
        one if one.alpha == alpha else replace(one, up=one.up * (one.alpha / alpha), alpha=alpha) for one in adapters
    ]


def read_kohya(file: Path, tensors: Mapping[str, Tensor], names: AdapterNames) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they are made of."""
    found: list[LoraWeights] = []
    used: set[str] = set()
    for name, down in tensors.items():
        stem, is_down, _ = name.partition(".lora_down.weight")
        if not is_down:
            continue
        part = part_of_key(file, stem, names, kohya=True)
        up = tensor_beside(file, tensors, f"{stem}.lora_up.weight")
        magnitude = _row_lengths(file, stem, tensors, len(up))
        used |= {name, f"{stem}.lora_up.weight", f"{stem}.alpha", f"{stem}.dora_scale"}
        found.append(
            LoraWeights(
                part=part,
                module=inner_name(part, dotted(stem.removeprefix(f"{names[part][1]}_"))),
                down=down,
                up=up,
                alpha=_alpha_beside(file, stem, tensors, rank=len(down)),
                magnitude=magnitude,
            )
        )
    return found, used


def _alpha_beside(file: Path, stem: str, tensors: Mapping[str, Tensor], rank: int) -> float:
    """Where there is none, or zero, alpha equals the rank, as kohya's scripts take it."""
    alpha = tensors.get(f"{stem}.alpha")
    if alpha is not None and alpha.numel() != 1:
        raise ConfigError(f"{str(file)!r} is damaged: {stem}.alpha has the shape {list(alpha.shape)}, not one number.")
    return float(rank) if alpha is None else float(alpha) or float(rank)


def _row_lengths(file: Path, stem: str, tensors: Mapping[str, Tensor], rows: int) -> Tensor | None:
    """DoRA's lengths [out]; LyCORIS also writes those of the columns, [1, in]."""
    lengths = tensors.get(f"{stem}.dora_scale")
    if lengths is None:
        return None
    if lengths.shape[:1] != (rows,) or lengths.numel() != rows:
        raise ConfigError(
            f"{str(file)!r}: {stem}.dora_scale has the shape {list(lengths.shape)}, which is not one length for each "
            f"of the {rows} rows.",
            "A DoRA of LyCORIS with lengths of columns (wd_on_output off) cannot be read.",
        )
    return lengths.flatten()
