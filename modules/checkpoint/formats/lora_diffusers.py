"""The layout of diffusers: PEFT's names below the part's name, `unet.down_blocks.0...lora_A.weight`.

Alpha is no tensor there, so the header says it, as diffusers (loaders/lora_base.py) does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_weights import (
    CLIP,
    AdapterNames,
    LoraWeights,
    inner_name,
    is_text,
    outer_name,
    part_of_key,
    tensor_beside,
)
from modules.checkpoint.formats.tensor_files import Planned, planned
from modules.config import ConfigError

ADAPTER_METADATA: Final = "lora_adapter_metadata"


def diffusers_tensors(adapters: Sequence[LoraWeights], names: AdapterNames, dtype: torch.dtype) -> dict[str, Planned]:
    """What a file holds, but for alpha."""
    tensors = {}
    for adapter in adapters:
        stem = f"{names[adapter.part][0]}.{outer_name(adapter)}"
        tensors[f"{stem}.lora_A.weight"] = planned(adapter.down, dtype)
        tensors[f"{stem}.lora_B.weight"] = planned(adapter.up, dtype)
        if adapter.magnitude is not None:
            # peft keeps a convolution's lengths as [1, out, 1, 1].
            sides = adapter.down.dim() - 2
            shape = [1, -1, *[1] * sides] if sides else [-1]
            # transformers finds the lengths of its own modules under the longer name only; peft finds both.
            vector = f"{stem}.lora_magnitude_vector" + (".weight" if is_text(adapter.part) else "")
            tensors[vector] = planned(adapter.magnitude.reshape(shape), dtype)
    return tensors


def adapter_settings(adapters: Sequence[LoraWeights], names: AdapterNames) -> dict[str, object]:
    """peft's LoraConfig of each part, under the part's prefix."""
    settings: dict[str, object] = {}
    for part in dict.fromkeys(adapter.part for adapter in adapters):
        own = [adapter for adapter in adapters if adapter.part == part]
        rank, alpha = own[0].rank, own[0].alpha
        # Without CLIP's outer name: peft compares the ends of names, so these fit every version of transformers.
        targets = {outer_name(adapter).removeprefix(CLIP): adapter for adapter in own}
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
        settings.update({f"{names[part][0]}.{key}": value for key, value in config.items()})
    return settings


def read_diffusers(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], names: AdapterNames
) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they are made of."""
    settings = _settings_in(file, metadata)
    found: list[LoraWeights] = []
    used: set[str] = set()
    for name, down in tensors.items():
        stem, is_down, _ = name.partition(".lora_A.weight")
        if not is_down:
            continue
        part = part_of_key(file, stem, names, kohya=False)
        prefix = names[part][0]
        module = stem.removeprefix(f"{prefix}.")
        vector = f"{stem}.lora_magnitude_vector"
        magnitude = tensors.get(vector, tensors.get(f"{vector}.weight"))
        used |= {name, f"{stem}.lora_B.weight", vector, f"{vector}.weight"}
        found.append(
            LoraWeights(
                part=part,
                module=inner_name(part, module),
                down=down,
                up=tensor_beside(file, tensors, f"{stem}.lora_B.weight"),
                alpha=_alpha_of(settings, prefix, module, rank=down.shape[0]),
                magnitude=None if magnitude is None else magnitude.flatten(),
            )
        )
    return found, used


def _settings_in(file: Path, metadata: Mapping[str, str]) -> dict[str, object]:
    text = metadata.get(ADAPTER_METADATA)
    if text is None:
        return {}
    try:
        settings: dict[str, object] = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{str(file)!r}: its header's {ADAPTER_METADATA} cannot be read ({error}).") from error
    return settings


def _alpha_of(settings: Mapping[str, object], prefix: str, module: str, rank: int) -> float:
    """What the header says for this module; without a header, alpha equals the rank, as diffusers takes it."""
    patterns = settings.get(f"{prefix}.alpha_pattern")
    if isinstance(patterns, dict):
        for pattern, alpha in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", module):  # as peft compares them
                return float(alpha)
    alpha = settings.get(f"{prefix}.lora_alpha")
    return float(alpha) if isinstance(alpha, int | float) else float(rank)
