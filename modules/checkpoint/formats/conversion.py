"""From one form of a file to another. All raise ConfigError for bad input and OSError where a disk is full."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import torch

from modules.checkpoint.formats.embeddings import read_embedding, write_embedding
from modules.checkpoint.formats.folders import describe_folder
from modules.checkpoint.formats.lora import read_lora, write_lora
from modules.checkpoint.formats.lora_diffusers import ADAPTER_METADATA
from modules.checkpoint.formats.lora_weights import AdapterNames, Layout
from modules.checkpoint.formats.metadata import RESOLUTIONS, original_implementation
from modules.checkpoint.formats.single_file import architecture_of, single_file
from modules.checkpoint.formats.tensor_files import DTYPES, HASH_KEY, Planned, TensorFile, write_tensor_file
from modules.checkpoint.saved_model import NOTE
from modules.config import ConfigError

_PIXELS: Final = 8  # along each side, for each of a latent
_SDXL: Final = "stable-diffusion-xl-v1-base"
# Second text encoder, Stability AI's names, a second layer in one transformer: each in SDXL alone.
_SDXL_ONLY: Final = (
    "lora_te1_", "lora_te2_", "text_encoder_2.", "lora_unet_input_", "lora_unet_output_", "lora_unet_middle_",
    "transformer_blocks.1.", "transformer_blocks_1_", "add_embedding", "label_emb",
)  # fmt: skip
_READS_TEXT: Final = re.compile(r"attn2[._]to_[kv]\.(lora_A|lora_down)\.")
# Version 2 reads 1024, in two kinds that cannot be told apart by that.
_BY_WIDTH_OF_TEXT: Final = {768: "stable-diffusion-v1", 2048: _SDXL}
_OF_THE_WRITER: Final = frozenset({"format", ADAPTER_METADATA, "sshs_model_hash", "sshs_legacy_hash"})


def model_to_file(source: Path, out: Path, dtype: torch.dtype) -> None:
    """A diffusers folder as one file in the original layout, with what Tandem noted of the model if it wrote it."""
    description = describe_folder(source)
    architecture = architecture_of(description)
    velocity = description.scheduler.get("prediction_type") == "v_prediction"
    latent = description.parts.get("unet", {}).get("sample_size")
    metadata = {
        **_modelspec(architecture, "", out, latent * _PIXELS if isinstance(latent, int) else 0),
        "modelspec.prediction_type": "v" if velocity else "epsilon",
        **_noted(source / NOTE),
        "modelspec.implementation": original_implementation(architecture),
        HASH_KEY: "",
    }
    single_file(source, out, dtype, metadata)


def convert_lora(source: Path, out: Path, layout: Layout, names: AdapterNames, dtype: torch.dtype | None) -> None:
    """A LoRA in either layout as one in `layout`."""
    with TensorFile(source) as file:
        metadata, stored = _kept(file.metadata, _modelspec(_architecture(file), "/lora", out)), _widest(file)
    write_lora(out, read_lora(source, names), layout, names, metadata, dtype or stored)


def convert_embedding(source: Path, out: Path, dtype: torch.dtype | None) -> None:
    """Any form of an embedding as the one that A1111, ComfyUI and diffusers read."""
    with TensorFile(source) as file:
        stored = _widest(file)
        metadata = file.metadata
    token, vectors = read_embedding(source)
    width = 0 if "text_encoder_2" in vectors else vectors["text_encoder"].shape[-1]
    architecture = _BY_WIDTH_OF_TEXT.get(width, "") if width else _SDXL
    metadata = _kept(metadata, _modelspec(architecture, "/textual-inversion", out))
    write_embedding(out, token, vectors, metadata, dtype or stored)


def convert_numbers(source: Path, out: Path, dtype: torch.dtype) -> None:
    """The same tensors under the same names, with their numbers as `dtype`."""
    with TensorFile(source) as file:
        tensors = {}
        for name in file.names:
            stored = file.stored_dtype(name)
            chosen = dtype if stored.is_floating_point else stored
            tensors[name] = Planned(file.shape(name), chosen, partial(file.read, name))
        same_form = {name: file.metadata[name] for name in (ADAPTER_METADATA,) if name in file.metadata}
        write_tensor_file(out, tensors, _kept(file.metadata, same_form))


def names_in(source: Path) -> list[str]:
    """Of all tensors of a file."""
    with TensorFile(source) as file:
        return file.names


def architecture(source: Path) -> str:
    """What modelspec calls the model that a LoRA is for; empty where neither header nor tensors tell it."""
    with TensorFile(source) as file:
        return _architecture(file)


def _architecture(file: TensorFile) -> str:
    said = file.metadata.get("modelspec.architecture", "").partition("/")[0]
    if said or any(word in name for name in file.names for word in _SDXL_ONLY):
        return said or _SDXL
    widths = (file.shape(name)[-1] for name in file.names if _READS_TEXT.search(name))
    return _BY_WIDTH_OF_TEXT.get(next(widths, 0), "")


def _widest(file: TensorFile) -> torch.dtype:
    stored = {file.stored_dtype(name) for name in file.names}
    return next((dtype for dtype in DTYPES.values() if dtype in stored), torch.float32)


def _kept(metadata: Mapping[str, str], also: Mapping[str, str]) -> dict[str, str]:
    """What a header says of the model, without what belongs to the form it had; `also` where it does not say it."""
    kept = {**also, **{name: value for name, value in metadata.items() if name not in _OF_THE_WRITER}}
    return kept | ({HASH_KEY: ""} if HASH_KEY in kept else {})


def _modelspec(architecture: str, kind: str, out: Path, resolution: int = 0) -> dict[str, str]:
    """What modelspec 1.0.1 wants to be said of every file; nothing where the architecture is not known."""
    if not architecture:
        return {}
    side = resolution or RESOLUTIONS.get(architecture, 0)
    values = {
        "sai_model_spec": "1.0.1",
        "architecture": architecture + kind,
        "implementation": "diffusers",
        "title": out.stem,
        "resolution": f"{side}x{side}" if side else "",
        "hash_sha256": "",
    }
    return {f"modelspec.{name}": value for name, value in values.items() if value or name == "hash_sha256"}


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
