"""What a file or folder contains, detected from names alone, for helpful messages about wrong ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal

from modules.checkpoint.formats.lora import is_adapter
from modules.checkpoint.formats.safetensors_file import SafetensorsFile
from modules.config import ConfigError
from modules.diffusion.base_model_files import index_in
from modules.diffusion.transformer_files.names import is_transformer_file

FileType = Literal["model", "transformer", "lora", "embedding", "other"]

DESCRIPTIONS: Final[dict[FileType, str]] = {
    "model": "a whole model",
    "transformer": "the transformer of a flow-matching model",
    "lora": "a LoRA",
    "embedding": "an embedding",
    "other": "neither a model, a LoRA nor an embedding",
}


def detect_file_type(names: Collection[str]) -> FileType:
    """The type of a file, from the names of its tensors; "model" means the original layout."""
    if is_transformer_file(names):
        return "transformer"
    if any(name.startswith("model.diffusion_model.") for name in names):
        return "model"
    if is_adapter(names):
        return "lora"
    if set(names) == {"clip_l", "clip_g"} or (len(names) == 1 and "." not in next(iter(names))):
        return "embedding"
    return "other"


def require_diffusers_folder(folder: Path) -> None:
    """Raises ConfigError if `folder` is not a diffusers folder, and says what it is instead."""
    if (folder / "model_index.json").is_file():
        return
    is_backup = (folder / "manifest.json").is_file() and (folder / "weights.safetensors").is_file()
    if is_backup or (folder / "model").is_dir():
        model = folder.absolute().parent.parent / "model" if is_backup else folder / "model"
        raise ConfigError(
            f"{str(folder)!r} is {'a backup, which only Tandem can read' if is_backup else 'the folder of a run'}.",
            f"Give the model that the run saved: {str(model)!r}.",
        )
    if (folder.absolute().parent / "model_index.json").is_file():
        raise ConfigError(
            f"{str(folder)!r} is not a diffusers folder but one component of it: it has no model_index.json.",
            f"Give the whole model: {str(folder.absolute().parent)!r}.",
        )
    if (index := index_in(folder)) is not None:
        raise ConfigError(
            f"{str(folder)!r} has a model in shards, and is no diffusers folder: it has no model_index.json.",
            f"Give the index: {str(index)!r}.",
        )
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        file_type = detect_file_type(_names_in(file))
        if file_type in ("lora", "embedding"):
            raise ConfigError(
                f"{str(folder)!r} contains {DESCRIPTIONS[file_type]}, not a whole model.",
                f"To convert it, give the file {str(file)!r}.",
            )
    raise ConfigError(
        f"{str(folder)!r} is not a diffusers folder: it has no model_index.json.",
        "Give a folder with a model_index.json and the subfolders unet, vae and so on.",
    )


def _names_in(file: Path) -> Sequence[str]:
    try:
        with SafetensorsFile(file) as opened:
            return opened.names
    except (ConfigError, OSError):  # the folder is reported as not a model either way
        return []
