"""From one form of a file to another. All raise ConfigError for bad input and OSError where a disk is full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import torch

from modules.checkpoint.formats.embeddings import read_embedding, write_embedding
from modules.checkpoint.formats.folders import describe_folder
from modules.checkpoint.formats.lora import ADAPTER_METADATA, AdapterNames, Layout, read_lora, write_lora
from modules.checkpoint.formats.metadata import original_implementation
from modules.checkpoint.formats.single_file import architecture_of, single_file
from modules.checkpoint.formats.tensor_files import DTYPES, HASH_KEY, Planned, TensorFile, write_tensor_file
from modules.checkpoint.saved_model import NOTE
from modules.config import ConfigError

_OF_THE_WRITER: Final = frozenset({"format", ADAPTER_METADATA, "sshs_model_hash", "sshs_legacy_hash"})


def model_to_file(source: Path, out: Path, dtype: torch.dtype) -> None:
    """A diffusers folder as one file in the original layout, with what Tandem noted of the model if it wrote it."""
    description = describe_folder(source)
    architecture = architecture_of(description)
    velocity = description.scheduler.get("prediction_type") == "v_prediction"
    metadata = {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": architecture,
        "modelspec.title": out.stem,
        "modelspec.prediction_type": "v" if velocity else "epsilon",
        **_noted(source / NOTE),
        "modelspec.implementation": original_implementation(architecture),
        HASH_KEY: "",
    }
    single_file(source, out, dtype, metadata)


def convert_lora(source: Path, out: Path, layout: Layout, names: AdapterNames, dtype: torch.dtype | None) -> None:
    """A LoRA in either layout as one in `layout`."""
    with TensorFile(source) as file:
        metadata, stored = _kept(file.metadata), _widest(file)
    write_lora(out, read_lora(source, names), layout, names, metadata, dtype or stored)


def convert_embedding(source: Path, out: Path, dtype: torch.dtype | None) -> None:
    """Any form of an embedding as the one that A1111, ComfyUI and diffusers read."""
    with TensorFile(source) as file:
        metadata, stored = _kept(file.metadata), _widest(file)
    token, vectors = read_embedding(source)
    write_embedding(out, token, vectors, metadata, dtype or stored)


def convert_numbers(source: Path, out: Path, dtype: torch.dtype) -> None:
    """The same tensors under the same names, with their numbers as `dtype`."""
    with TensorFile(source) as file:
        tensors = {}
        for name in file.names:
            stored = file.stored_dtype(name)
            chosen = dtype if stored.is_floating_point else stored
            tensors[name] = Planned(file.shape(name), chosen, partial(file.read, name))
        write_tensor_file(out, tensors, _kept(file.metadata, ADAPTER_METADATA))


def names_in(source: Path) -> list[str]:
    """Of all tensors of a file."""
    with TensorFile(source) as file:
        return file.names


def is_whole_model(names: list[str]) -> bool:
    """Whether there is a UNet in the original layout among them."""
    return any(name.startswith("model.diffusion_model.") for name in names)


def has_two_encoders(names: list[str]) -> bool:
    """Whether the names of a LoRA are those of SDXL."""
    return any(name.startswith(("lora_te1_", "lora_te2_", "text_encoder_2.", "lora_unet_input_")) for name in names)


def _widest(file: TensorFile) -> torch.dtype:
    stored = {file.stored_dtype(name) for name in file.names}
    return next((dtype for dtype in DTYPES.values() if dtype in stored), torch.float32)


def _kept(metadata: Mapping[str, str], also: str = "") -> dict[str, str]:
    """What a header says of the model, without what belongs to the form it had."""
    kept = {name: value for name, value in metadata.items() if name not in _OF_THE_WRITER or name == also}
    return kept | ({HASH_KEY: ""} if HASH_KEY in kept else {})


def _noted(note_file: Path) -> dict[str, str]:
    """What Tandem wrote beside the model; nothing where it did not write it."""
    if not note_file.is_file():
        return {}
    try:
        noted = json.loads(note_file.read_text(encoding="utf-8")).get("metadata", {})
        return {str(name): str(value) for name, value in noted.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{str(note_file)!r} is damaged ({type(error).__name__}); remove it, and try again."
        ) from error
