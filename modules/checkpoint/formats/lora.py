"""Reading and writing LoRA adapters in the two common layouts: diffusers' (PEFT) and kohya's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch

from modules.checkpoint.formats.lora_diffusers import (
    ADAPTER_METADATA,
    diffusers_tensors,
    peft_configs,
    read_diffusers,
)
from modules.checkpoint.formats.lora_kohya import has_stability_names, kohya_tensors, read_kohya
from modules.checkpoint.formats.lora_weights import AdapterPrefixes, Layout, LoraWeights
from modules.checkpoint.formats.metadata import SDXL, original_implementation
from modules.checkpoint.formats.safetensors_file import SafetensorsFile, write_safetensors
from modules.config import ConfigError

_MATRICES: Final = (".lora_down.weight", ".lora_up.weight", ".lora_A.weight", ".lora_B.weight")


def write_lora(
    file: Path,
    weights: Iterable[LoraWeights],
    layout: Layout,
    prefixes: AdapterPrefixes,
    metadata: Mapping[str, str],
    dtype: torch.dtype,
) -> None:
    """Write the adapters. Raises ConfigError if the layout cannot name a module, OSError if the disk is full."""
    adapters = list(weights)
    header = dict(metadata)
    if "modelspec.implementation" in header:  # depends on whose names for layers the file has
        original = layout == "kohya" and has_stability_names(adapters, prefixes)
        header["modelspec.implementation"] = original_implementation(SDXL) if original else "diffusers"
    if layout == "kohya":
        write_safetensors(file, kohya_tensors(adapters, prefixes, dtype), header)
        return
    settings = {ADAPTER_METADATA: json.dumps(peft_configs(adapters, prefixes), indent=2, sort_keys=True)}
    write_safetensors(file, diffusers_tensors(adapters, prefixes, dtype), header | settings)


def read_lora(file: Path, prefixes: AdapterPrefixes) -> list[LoraWeights]:
    """The adapters in `file`, in either layout.

    Raises ConfigError if it is not a LoRA for `prefixes`, or contains something that would be lost.
    """
    with SafetensorsFile(file) as source:
        tensors = {name: source.read(name) for name in source.names}
        metadata = source.metadata
    flat = next((name for name, tensor in tensors.items() if name.endswith(_MATRICES) and tensor.dim() < 2), None)
    if flat is not None:
        raise ConfigError(f"{str(file)!r} is damaged: {flat!r} has the shape {list(tensors[flat].shape)}.")
    if any(".lora_down." in name for name in tensors):
        found, used = read_kohya(file, tensors, prefixes)
    elif any(".lora_A." in name for name in tensors):
        found, used = read_diffusers(file, tensors, metadata, prefixes)
    else:
        raise ConfigError(
            f"{str(file)!r} is not a LoRA: no name in it contains lora_A or lora_down.",
            "Tandem reads the layouts of diffusers (PEFT) and kohya; other types of LyCORIS are not supported.",
        )
    unknown = next((name for name in tensors if name not in used), None)
    if unknown is not None:
        raise ConfigError(f"{str(file)!r}: the tensor {unknown!r} does not belong to any supported LoRA.")
    mismatched = next((adapter for adapter in found if adapter.up.shape[1] != adapter.rank), None)
    if mismatched is not None:
        raise ConfigError(
            f"{str(file)!r} is damaged: the two matrices of {mismatched.module!r} have the incompatible shapes "
            f"{list(mismatched.down.shape)} and {list(mismatched.up.shape)}."
        )
    return found
