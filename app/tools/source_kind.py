"""What a file that is to be converted holds, and the formats that it can become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from app.base_model import is_lora, tensor_shapes
from app.tools.model_tasks import FORMATS, LORA_FILES
from modules.facts import family_names, named_family
from modules.files import FileFault, expand_home

# "lora_folder": a run's model folder with a LoRA, which is no source itself; "": not known
SourceKind = Literal["folder", "lora_folder", "model", "lora", "kohya_lora", "embedding", "other", ""]

# As scripts/convert.py, which a test compares.
FITTING: Final[Mapping[SourceKind, tuple[str, ...]]] = {
    "folder": ("single_file",),
    "model": ("dtype", "diffusers"),
    "lora": ("kohya", "diffusers", "dtype"),
    "kohya_lora": ("diffusers", "kohya", "dtype"),
    "lora_folder": ("kohya", "diffusers", "dtype"),
    "embedding": ("embedding", "dtype"),
    "other": ("dtype", "kohya", "diffusers", "embedding"),
    "": tuple(FORMATS),
}
REASONS: Final[Mapping[SourceKind, str]] = {
    "folder": "This is a diffusers folder, which becomes a single file.",
    "model": "This file holds the weights of a model: they get another number format, or become a diffusers folder.",
    "lora": "This file is a LoRA, which becomes one for other programs.",
    "kohya_lora": "This file is a LoRA as ComfyUI, A1111 and Forge read it; it becomes one for other programs.",
    "lora_folder": "This folder holds a LoRA: choose its .safetensors file above.",
    "embedding": "This file is an embedding, which becomes one for other programs.",
    "other": "What this file holds is not known; another number format suits any file.",
    "": "",
}


def source_kind(name: str) -> SourceKind:
    """What a path leads to, from the names of its tensors; reads headers only, and may be slow on a network disk."""
    path = expand_home(name)
    try:
        if path.is_dir():
            if (path / "model_index.json").is_file():
                return "folder"
            return "lora_folder" if any((path / name).is_file() for name in LORA_FILES) else ""
        shapes = tensor_shapes(path) if path.suffix.lower() == ".safetensors" else None
    except (OSError, FileFault):
        return ""
    if not shapes:
        return ""
    if is_lora(shapes):
        return "kohya_lora" if all(name.startswith("lora_") for name in shapes) else "lora"
    if set(shapes) == {"clip_l", "clip_g"} or (len(shapes) == 1 and "." not in next(iter(shapes))):
        return "embedding"
    if any(each.startswith("model.diffusion_model.") for each in shapes) or named_family(shapes) in family_names():
        return "model"
    return "other"
