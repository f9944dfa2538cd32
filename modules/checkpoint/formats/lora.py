"""LoRA adapters in the two layouts that tools agree on, written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch

from modules.checkpoint.formats.lora_diffusers import (
    ADAPTER_METADATA,
    adapter_settings,
    diffusers_tensors,
    read_diffusers,
)
from modules.checkpoint.formats.lora_kohya import has_original_names, kohya_tensors, read_kohya
from modules.checkpoint.formats.lora_weights import AdapterNames, Layout, LoraWeights
from modules.checkpoint.formats.metadata import original_implementation
from modules.checkpoint.formats.tensor_files import TensorFile, write_tensor_file
from modules.config import ConfigError

_MATRICES: Final = (".lora_down.weight", ".lora_up.weight", ".lora_A.weight", ".lora_B.weight")
_SDXL: Final = "stable-diffusion-xl-v1-base"


def write_lora(
    file: Path,
    weights: Iterable[LoraWeights],
    layout: Layout,
    names: AdapterNames,
    metadata: Mapping[str, str],
    dtype: torch.dtype,
) -> None:
    """Write the adapter. Raises ConfigError where the layout cannot name a module, OSError where the disk is full."""
    adapters = list(weights)
    notes = dict(metadata)
    if "modelspec.implementation" in notes:  # whose names for layers the file has
        original = layout == "kohya" and has_original_names(adapters, names)
        notes["modelspec.implementation"] = original_implementation(_SDXL) if original else "diffusers"
    if layout == "kohya":
        write_tensor_file(file, kohya_tensors(adapters, names, dtype), notes)
        return
    settings = {ADAPTER_METADATA: json.dumps(adapter_settings(adapters, names), indent=2, sort_keys=True)}
    write_tensor_file(file, diffusers_tensors(adapters, names, dtype), notes | settings)


def read_lora(file: Path, names: AdapterNames) -> list[LoraWeights]:
    """The adapter in `file`, whichever layout it has.

    Raises ConfigError, in words, where it is none for `names`, or holds something that would be lost.
    """
    with TensorFile(file) as source:
        tensors = {name: source.read(name) for name in source.names}
        metadata = source.metadata
    flat = next((name for name, tensor in tensors.items() if name.endswith(_MATRICES) and tensor.dim() < 2), None)
    if flat is not None:
        raise ConfigError(f"{str(file)!r} is damaged: {flat!r} has the shape {list(tensors[flat].shape)}.")
    if any(".lora_down." in name for name in tensors):
        found, used = read_kohya(file, tensors, names)
    elif any(".lora_A." in name for name in tensors):
        found, used = read_diffusers(file, tensors, metadata, names)
    else:
        raise ConfigError(
            f"{str(file)!r} holds no LoRA: no name in it has lora_A or lora_down.",
            "Tandem reads the layouts of diffusers (PEFT) and kohya; other kinds of LyCORIS files are not read.",
        )
    strange = next((name for name in tensors if name not in used), None)
    if strange is not None:
        raise ConfigError(f"{str(file)!r}: the tensor {strange!r} belongs to no LoRA that Tandem knows.")
    uneven = next((one for one in found if one.up.shape[1] != one.rank), None)
    if uneven is not None:
        raise ConfigError(
            f"{str(file)!r} is damaged: the two matrices of {uneven.module!r} are of the shapes "
            f"{list(uneven.down.shape)} and {list(uneven.up.shape)}, which do not fit each other."
        )
    return found
