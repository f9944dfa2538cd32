"""diffusers' LoRA layout: PEFT's names after the submodule's, `unet.down_blocks.0...lora_A.weight`.

Alpha is not a tensor but part of the metadata, as in diffusers (loaders/lora_base.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_other_names import literal_alpha, rank_scale
from modules.checkpoint.formats.lora_weights import (
    CLIP_PREFIX,
    AdapterPrefixes,
    LoraWeights,
    check_alpha,
    is_text_encoder,
    module_in_file,
    module_in_memory,
    require_tensor,
    submodule_of_key,
)
from modules.checkpoint.formats.safetensors_file import LazyTensor, lazy_tensor
from modules.config import ConfigError
from modules.files import FileFault, decode_json

ADAPTER_METADATA: Final = "lora_adapter_metadata"


def diffusers_tensors(
    adapters: Sequence[LoraWeights], prefixes: AdapterPrefixes, dtype: torch.dtype
) -> dict[str, LazyTensor]:
    """The tensors of a file."""
    tensors = {}
    for adapter in adapters:
        stem = f"{prefixes[adapter.submodule][0]}.{module_in_file(adapter)}"
        tensors[f"{stem}.lora_A.weight"] = lazy_tensor(adapter.down, dtype)
        tensors[f"{stem}.lora_B.weight"] = lazy_tensor(adapter.up, dtype)
        if adapter.magnitude is not None:
            # peft stores the magnitude of a convolution as [1, out, 1, 1].
            sides = adapter.down.dim() - 2
            shape = [1, -1, *[1] * sides] if sides else [-1]
            # for its own modules transformers recognises the longer name only; peft recognises both
            vector = f"{stem}.lora_magnitude_vector" + (".weight" if is_text_encoder(adapter.submodule) else "")
            tensors[vector] = lazy_tensor(adapter.magnitude.reshape(shape), dtype)
    return tensors


def peft_configs(adapters: Sequence[LoraWeights], prefixes: AdapterPrefixes) -> dict[str, object]:
    """peft's LoraConfig of each submodule, its keys prefixed by the submodule's."""
    settings: dict[str, object] = {}
    for submodule in dict.fromkeys(adapter.submodule for adapter in adapters):
        own = [adapter for adapter in adapters if adapter.submodule == submodule]
        rank, alpha = own[0].rank, own[0].alpha
        # Without CLIP's prefix: peft matches the ends of names, so these work with every version of transformers.
        targets = {module_in_file(adapter).removeprefix(CLIP_PREFIX): adapter for adapter in own}
        config = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": alpha,
            "target_modules": sorted(targets),
            "rank_pattern": {name: a.rank for name, a in targets.items() if a.rank != rank},
            "alpha_pattern": {name: a.alpha for name, a in targets.items() if a.alpha != alpha},
            "use_dora": any(adapter.magnitude is not None for adapter in own),
            "lora_bias": False,
        }
        settings.update({f"{prefixes[submodule][0]}.{key}": value for key, value in config.items()})
    return settings


def read_diffusers(
    file: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object], prefixes: AdapterPrefixes
) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they use; `settings` as in `header_settings`."""
    found: list[LoraWeights] = []
    used: set[str] = set()
    for name, down in tensors.items():
        stem, is_down, _ = name.partition(".lora_A.weight")
        if not is_down:
            continue
        submodule = submodule_of_key(file, stem, prefixes, kohya=False)
        prefix = prefixes[submodule][0]
        module = stem.removeprefix(f"{prefix}.")
        vector = f"{stem}.lora_magnitude_vector"
        scale = f"{stem}.dora_scale"  # of ai-toolkit
        magnitude = next((tensors[each] for each in (vector, f"{vector}.weight", scale) if each in tensors), None)
        used |= {name, f"{stem}.lora_B.weight", vector, f"{vector}.weight", scale, f"{stem}.alpha"}
        found.append(
            LoraWeights(
                submodule=submodule,
                module=module_in_memory(submodule, module),
                down=down,
                up=require_tensor(file, tensors, f"{stem}.lora_B.weight"),
                alpha=alpha_of(file, settings, prefix, module, tensors.get(f"{stem}.alpha"), rank=down.shape[0]),
                magnitude=None if magnitude is None else magnitude.flatten(),
            )
        )
    return found, used


def header_settings(file: Path, metadata: Mapping[str, str]) -> dict[str, object]:
    """peft's settings of each submodule in the header of `file`, `unet.lora_alpha`; empty if it has none."""
    text = metadata.get(ADAPTER_METADATA)
    if text is None:
        return {}
    try:
        settings = decode_json(text)
        if not isinstance(settings, dict):
            raise FileFault("is not an object")
    except FileFault as error:
        raise ConfigError(f"{str(file)!r}: {ADAPTER_METADATA} in its metadata {error}.") from error
    return settings


def alpha_of(
    file: Path, settings: Mapping[str, object], prefix: str, module: str, stored: Tensor | None, rank: int
) -> float:
    """Alpha of a module: its own tensor, or what the settings say; by default equal to the rank, as in diffusers."""
    if stored is not None:
        if stored.numel() != 1:
            raise ConfigError(f"{str(file)!r} is damaged: alpha of {module!r} has the shape {list(stored.shape)}.")
        return check_alpha(file, f"alpha of {module!r}", float(stored))
    alpha = literal_alpha(file, settings, prefix, module)
    if alpha is None:
        return float(rank)
    return check_alpha(file, f"alpha of {module!r}", alpha) * rank_scale(settings, prefix, rank)
