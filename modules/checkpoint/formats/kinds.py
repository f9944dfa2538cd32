"""What a file or a folder holds, told from names alone, so that a wrong one gets the right sentence."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

from modules.checkpoint.formats.tensor_files import TensorFile
from modules.config import ConfigError

FileKind = Literal["model", "lora", "embedding", "other"]

KIND_WORDS: Final[dict[FileKind, str]] = {
    "model": "a whole model",
    "lora": "a LoRA",
    "embedding": "an embedding",
    "other": "neither a model, a LoRA nor an embedding",
}
_LORA: Final = (".lora_down.", ".lora_A.")
# By what of the original layout each architecture alone has.
_ARCHITECTURES: Final = {
    "conditioner.embedders.": "Stable Diffusion XL",
    "cond_stage_model.model.": "Stable Diffusion 2",
    "cond_stage_model.transformer.": "Stable Diffusion 1",
}


def file_kind(names: Collection[str]) -> FileKind:
    """By the names of its tensors; a model is one in the original layout, an embedding's name is a word."""
    if any(name.startswith("model.diffusion_model.") for name in names):
        return "model"
    if any(word in name for name in names for word in _LORA):
        return "lora"
    if set(names) == {"clip_l", "clip_g"} or (len(names) == 1 and "." not in next(iter(names))):
        return "embedding"
    return "other"


def original_architecture(names: Collection[str]) -> str:
    """Whose original layout the names of a whole model are those of; empty where they are of none that is known."""
    for begin, architecture in _ARCHITECTURES.items():
        if any(name.startswith(begin) for name in names):
            return architecture
    return ""


def refuse_other_folders(folder: Path) -> None:
    """Raises ConfigError for a folder that is no diffusers folder, and says what it is instead."""
    if (folder / "model_index.json").is_file():
        return
    is_backup = (folder / "manifest.json").is_file() and (folder / "weights.safetensors").is_file()
    if is_backup or (folder / "model").is_dir():
        model = folder.absolute().parent.parent / "model" if is_backup else folder / "model"
        raise ConfigError(
            f"{str(folder)!r} is {'a backup, which only Tandem reads' if is_backup else 'the folder of a whole run'}.",
            f"Give the model that the run saved: {str(model)!r}.",
        )
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        kind = file_kind(_names_in(file))
        if kind in ("lora", "embedding"):
            raise ConfigError(
                f"{str(folder)!r} holds {KIND_WORDS[kind]}, which is no whole model.",
                f"To convert it, give the file {str(file)!r}.",
            )
    raise ConfigError(
        f"{str(folder)!r} is no diffusers folder: it has no model_index.json.",
        "Name a folder with a model_index.json and the folders unet, vae and so on.",
    )


def _names_in(file: Path) -> list[str]:
    try:
        with TensorFile(file) as opened:
            return opened.names
    except (ConfigError, OSError):  # that the folder is no model is said either way
        return []
