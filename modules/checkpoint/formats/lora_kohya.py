"""kohya's LoRA layout: `lora_unet_down_blocks_0_....lora_down.weight`, with tensors `alpha` and `dora_scale`.

SDXL's UNet has Stability AI's names there, `lora_unet_input_blocks_4_1_...`; reading accepts both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.kohya_names import from_kohya, to_kohya, to_stability
from modules.checkpoint.formats.lora_weights import (
    AdapterPrefixes,
    AdapterWeights,
    LoraWeights,
    check_alpha,
    module_in_file,
    module_in_memory,
    require_tensor,
    submodule_of_key,
)
from modules.checkpoint.formats.safetensors_file import LazyTensor, lazy_tensor
from modules.config import ConfigError

_UNET: Final = "unet"


def kohya_tensors(
    adapters: Sequence[LoraWeights], prefixes: AdapterPrefixes, dtype: torch.dtype
) -> dict[str, LazyTensor]:
    """The tensors of a file. Raises ConfigError if the layout has no name for a module."""
    tensors = {}
    for stem, adapter in zip(kohya_key_prefixes(adapters, prefixes), _with_equal_alpha(adapters), strict=True):
        tensors[f"{stem}.lora_down.weight"] = lazy_tensor(adapter.down, dtype)
        tensors[f"{stem}.lora_up.weight"] = lazy_tensor(adapter.up, dtype)
        tensors[f"{stem}.alpha"] = lazy_tensor(torch.tensor(float(adapter.alpha)), torch.float32)
        if adapter.magnitude is not None:
            # one magnitude for each output row, as LyCORIS writes it with wd_on_output
            shape = [-1, *[1] * (adapter.down.dim() - 1)]
            tensors[f"{stem}.dora_scale"] = lazy_tensor(adapter.magnitude.reshape(shape), dtype)
    return tensors


def kohya_key_prefixes(adapters: Sequence[AdapterWeights], prefixes: AdapterPrefixes) -> list[str]:
    """The key prefix of each adapter. Raises ConfigError if the layout has no name for a module."""
    use_stability = has_stability_names(adapters, prefixes)
    stems = []
    for adapter in adapters:
        is_unet = adapter.submodule == _UNET
        name = to_stability(adapter.module) if use_stability and is_unet else to_kohya(module_in_file(adapter))
        if name is None:
            raise ConfigError(
                f"lora_layouts: the module {adapter.module!r} cannot be named in the kohya layout, which replaces "
                "dots by underscores.",
                "Choose only the layout diffusers.",
            )
        stems.append(f"{prefixes[adapter.submodule][1]}_{name}")
    return stems


def has_stability_names(adapters: Sequence[AdapterWeights], prefixes: AdapterPrefixes) -> bool:
    """Whether the UNet's modules get Stability AI's names: all or none, since readers expect one style per file.

    A UNet with two text encoders is SDXL's; if its blocks were changed, it keeps diffusers' names.
    """
    modules = [adapter.module for adapter in adapters if adapter.submodule == _UNET]
    return (
        "text_encoder_2" in prefixes and bool(modules) and all(to_stability(module) is not None for module in modules)
    )


def _with_equal_alpha(adapters: Sequence[LoraWeights]) -> list[LoraWeights]:
    """Equivalent adapters with the alpha of the first: diffusers ignores differing alphas (get_peft_kwargs)."""
    alpha = adapters[0].alpha if adapters else 1.0
    return [
        each if each.alpha == alpha else replace(each, up=each.up * (each.alpha / alpha), alpha=alpha)
        for each in adapters
    ]


def read_kohya(
    file: Path, tensors: Mapping[str, Tensor], prefixes: AdapterPrefixes
) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they use."""
    found: list[LoraWeights] = []
    used: set[str] = set()
    for name, down in tensors.items():
        stem, is_down, _ = name.partition(".lora_down.weight")
        if not is_down:
            continue
        submodule = submodule_of_key(file, stem, prefixes, kohya=True)
        up = require_tensor(file, tensors, f"{stem}.lora_up.weight")
        magnitude = kohya_magnitude(file, stem, tensors, len(up))
        mid = tensors.get(f"{stem}.lora_mid.weight")
        used |= {name, *(f"{stem}.{end}" for end in ("lora_up.weight", "lora_mid.weight", "alpha", "dora_scale"))}
        if mid is not None:  # of LyCORIS' use_tucker: a kernel between the two, which `down` takes in without loss
            if (
                mid.shape[:2] != (len(down), len(down))
                or mid.dim() != 4
                or down.flatten(1).shape[1:] != down.shape[1:2]
            ):
                raise ConfigError(f"{str(file)!r} is damaged: {stem}.lora_mid has the shape {list(mid.shape)}.")
            down = torch.einsum("abkl,bi->aikl", mid.double(), down.flatten(1).double()).to(mid.dtype)
        found.append(
            LoraWeights(
                submodule=submodule,
                module=module_in_memory(submodule, from_kohya(stem.removeprefix(f"{prefixes[submodule][1]}_"))),
                down=down,
                up=up,
                alpha=kohya_alpha(file, stem, tensors, rank=len(down)),
                magnitude=magnitude,
            )
        )
    return found, used


def kohya_alpha(file: Path, stem: str, tensors: Mapping[str, Tensor], rank: int) -> float:
    """If alpha is missing or zero it equals the rank, as in kohya's scripts."""
    alpha = tensors.get(f"{stem}.alpha")
    if alpha is None:
        return float(rank)
    if alpha.numel() != 1:
        raise ConfigError(f"{str(file)!r} is damaged: {stem}.alpha has the shape {list(alpha.shape)}, not one number.")
    return check_alpha(file, f"{stem}.alpha", float(alpha) or float(rank))


def kohya_magnitude(file: Path, stem: str, tensors: Mapping[str, Tensor], rows: int) -> Tensor | None:
    """DoRA's magnitude [out]; LyCORIS may also write one per column, [1, in], which is not supported."""
    magnitude = tensors.get(f"{stem}.dora_scale")
    if magnitude is None:
        return None
    if magnitude.shape[:1] != (rows,) or magnitude.numel() != rows:
        raise ConfigError(
            f"{str(file)!r}: {stem}.dora_scale has the shape {list(magnitude.shape)}, not one magnitude for "
            f"each of the {rows} rows.",
            "DoRA from LyCORIS with magnitudes per column (wd_on_output off) is not supported.",
        )
    return magnitude.flatten()
