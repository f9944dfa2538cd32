"""Converting files between formats. All functions raise ConfigError for bad input, OSError if the disk is full."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from modules.checkpoint.formats.diffusers_folder import read_diffusers_folder
from modules.checkpoint.formats.embeddings import read_embedding, write_embedding
from modules.checkpoint.formats.lora import read_lora, write_lora
from modules.checkpoint.formats.lora_diffusers import ADAPTER_METADATA
from modules.checkpoint.formats.lora_limits import limits_of_layout
from modules.checkpoint.formats.lora_origin import (
    ARCHITECTURE_BY_TEXT_WIDTH,
    check_known_layers,
    lora_architecture,
    of_family,
)
from modules.checkpoint.formats.lora_own_names import has_kohya_names
from modules.checkpoint.formats.lora_transformer import TRANSFORMER
from modules.checkpoint.formats.lora_weights import AdapterPrefixes, Layout
from modules.checkpoint.formats.metadata import SDXL, original_implementation
from modules.checkpoint.formats.safetensors_file import (
    HASH_KEY,
    KOHYA_HASH_KEYS,
    LazyTensor,
    SafetensorsFile,
    write_safetensors,
)
from modules.checkpoint.formats.single_file import (
    architecture_of,
    transformer_layout_of,
    write_diffusers_folder,
    write_single_file,
)
from modules.checkpoint.saved_model import fault_of_info
from modules.config import ConfigError
from modules.diffusion.dtypes import DTYPES
from modules.diffusion.model_files.open_file import open_model_file
from modules.diffusion.model_files.scaled_file import IN_HEADER
from modules.facts import whole_models
from modules.files import read_json
from modules.run.folder.saved_models import MODEL_INFO

_PIXELS_PER_LATENT: Final = 8  # along each side
_FORMAT_KEYS: Final = frozenset({"format", ADAPTER_METADATA, IN_HEADER, *KOHYA_HASH_KEYS})


def folder_to_single_file(source: Path, out: Path, dtype: torch.dtype | None) -> None:
    """A diffusers folder to a single file in the original layout; keeps the metadata in tandem.json.

    Without `dtype` a transformer's tensors keep theirs, and those of Stable Diffusion become fp32.
    """
    model = read_diffusers_folder(source)
    architecture = architecture_of(model)
    is_flow = transformer_layout_of(model) is not None
    velocity = model.scheduler.get("prediction_type") == "v_prediction"
    latent = model.components.get("unet", {}).get("sample_size")
    metadata = {
        **_modelspec(architecture, "", out, latent * _PIXELS_PER_LATENT if isinstance(latent, int) else 0),
        "modelspec.prediction_type": "flow" if is_flow else "v" if velocity else "epsilon",
        **_saved_metadata(source / MODEL_INFO),
        "modelspec.implementation": original_implementation(architecture),
        HASH_KEY: "",
    }
    write_single_file(source, out, dtype if is_flow else dtype or torch.float32, metadata)


def single_file_to_folder(source: Path, layout: Path, out: Path, dtype: torch.dtype | None) -> None:
    """A single file to a diffusers folder, with what is missing from the folder `layout`; `dtype` as above."""
    is_transformer = transformer_layout_of(read_diffusers_folder(layout)) is not None
    write_diffusers_folder(source, layout, out, dtype if is_transformer else dtype or torch.float32)


def convert_lora(
    source: Path,
    out: Path,
    layout: Layout,
    prefixes: AdapterPrefixes,
    dtype: torch.dtype | None,
    left_out: list[str] | None = None,
) -> str:
    """A LoRA in any layout to one in `layout`; for `left_out` see `read_adapter`.

    Returns what other programs do not take from it; may be empty.
    """
    with SafetensorsFile(source) as file:
        metadata = _merge_metadata(file.metadata, _modelspec(lora_architecture(file), "/lora", out))
        stored = _widest_dtype(file)
    weights, architecture = read_lora(source, prefixes, left_out), metadata.get("modelspec.architecture", "")
    check_known_layers(source, (one.module for one in weights if one.submodule != TRANSFORMER))
    if layout == "kohya" and not has_kohya_names(weights, prefixes, architecture):
        raise ConfigError(
            f"{str(source)!r} is a LoRA of a model for which kohya's layout has no names, or whose names do not tell "
            f"which model it is for{of_family(source)}.",
            "ComfyUI reads diffusers' names, too: use --to diffusers.",
        )
    write_lora(out, weights, layout, prefixes, metadata, dtype or stored)
    return limits_of_layout(weights, layout, out.name, prefixes, architecture)


def lora_metadata(metadata: Mapping[str, str], architecture: str, out: Path, rank: int) -> dict[str, str]:
    """Of a LoRA whose `metadata` was that of another rank, which is now also its alpha."""
    of_rank = {name: str(rank) for name in ("ss_network_dim", "ss_network_alpha")}
    return {**_merge_metadata(metadata, _modelspec(architecture, "/lora", out)), **of_rank}


def convert_embedding(source: Path, out: Path, dtype: torch.dtype | None) -> None:
    """An embedding in any format to the one that A1111, ComfyUI and diffusers read."""
    with SafetensorsFile(source) as file:
        stored = _widest_dtype(file)
        metadata = file.metadata
    token, vectors = read_embedding(source)
    width = 0 if "text_encoder_2" in vectors else vectors["text_encoder"].shape[-1]
    architecture = ARCHITECTURE_BY_TEXT_WIDTH.get(width, "") if width else SDXL
    metadata = _merge_metadata(metadata, _modelspec(architecture, "/textual-inversion", out))
    write_embedding(out, token, vectors, metadata, dtype or stored)


def convert_dtype(source: Path, out: Path, dtype: torch.dtype) -> None:
    """The same tensors under the same names, floating point ones as `dtype`; of a quantised file without its scales."""
    with open_model_file(source) as file:
        tensors = {}
        for name in file.names:
            stored = file.stored_dtype(name)
            chosen = dtype if stored.is_floating_point else stored
            tensors[name] = LazyTensor(file.shape(name), chosen, partial(file.read, name))
        of_format: dict[str, str] = {
            name: file.metadata[name] for name in (ADAPTER_METADATA, *KOHYA_HASH_KEYS) if name in file.metadata
        }
        write_safetensors(out, tensors, _merge_metadata(file.metadata, of_format))


def tensor_names(source: Path) -> list[str]:
    """The names of all tensors in a file."""
    with open_model_file(source) as file:
        return [*file.names]


def detect_architecture(source: Path) -> str:
    """The modelspec name of the model that a LoRA is for; empty if neither metadata nor tensors reveal it."""
    with SafetensorsFile(source) as file:
        return lora_architecture(file)


def _widest_dtype(file: SafetensorsFile) -> torch.dtype:
    stored = {file.stored_dtype(name) for name in file.names}
    return next((dtype for dtype in DTYPES.values() if dtype in stored), torch.float32)


def _merge_metadata(metadata: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """`defaults` updated by `metadata`, without the keys that belong to its old format."""
    kept = {**defaults, **{name: value for name, value in metadata.items() if name not in _FORMAT_KEYS}}
    return kept | ({HASH_KEY: ""} if HASH_KEY in kept else {})


def _modelspec(architecture: str, suffix: str, out: Path, resolution: int = 0) -> dict[str, str]:
    """The fields that modelspec 1.0.1 requires of every file; empty if the architecture is unknown."""
    if not architecture:
        return {}
    whole = whole_models().get(architecture)
    side = resolution or (0 if whole is None else whole.resolution)
    values = {
        "sai_model_spec": "1.0.1",
        "architecture": architecture + suffix,
        "implementation": "diffusers",
        "title": out.stem,
        "resolution": f"{side}x{side}" if side else "",
        "hash_sha256": "",
    }
    return {f"modelspec.{name}": value for name, value in values.items() if value or name == "hash_sha256"}


def _saved_metadata(info_file: Path) -> dict[str, str]:
    """The metadata in tandem.json; empty if Tandem did not write the model."""
    if not info_file.is_file():
        return {}
    try:
        info: Any = read_json(info_file)
        saved = info.get("metadata", {})
        return {str(name): str(value) for name, value in saved.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{str(info_file)!r} is damaged: {fault_of_info(error)}; remove it and try again.") from error
