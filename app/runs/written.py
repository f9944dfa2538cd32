"""What a run has written, and which programs open it: docs/files.md for the window."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.facts import all_facts
from modules.files import FileFault, read_json
from modules.run import RunFolder
from modules.run.folder.saved_models import MODEL_INFO, saved_models

_MAX_BACKUPS: Final = 4  # listed one by one
_MAX_FILES: Final = 20_000  # counted in a folder
_INDEX: Final = "model_index.json"
_STEP: Final = re.compile(r"step-(\d{1,15})")
_OF_LORA: Final = {
    "pytorch_lora_weights.safetensors": ("LoRA in diffusers' layout", "diffusers (load_lora_weights), peft, Tandem"),
    "lora_kohya.safetensors": (
        "LoRA in kohya's layout",
        "ComfyUI (models/loras), A1111 and Forge (models/Lora), InvokeAI, diffusers",
    ),
}
_SINGLE_FILE: Final = "ComfyUI (models/checkpoints), A1111 and Forge (models/Stable-diffusion), kohya's scripts"
_TRANSFORMER: Final = "ComfyUI (models/diffusion_models), the model's own code, diffusers, kohya's scripts"
_EMBEDDING: Final = "ComfyUI (models/embeddings), A1111 and Forge (embeddings), diffusers (load_textual_inversion)"
_DIFFUSERS: Final = "diffusers (from_pretrained), Forge, InvokeAI, Tandem as a base model"
_OWN: Final = "Tandem: Generate, or scripts/sample.py"
_CLASSIFIER: Final = "Tandem: scripts/classify.py"
_OWN_PIPELINES: Final = ("PixelDiffusionPipeline",)


@dataclass(frozen=True)
class Written:
    """A file or folder of a run, what it is, and what opens it; `size` in bytes.

    A model of an earlier step has that `step`, and a `sample` of it if there is one. `comfyui` is the folder below
    ComfyUI's `models` that a file belongs to; empty if ComfyUI does not open it.
    """

    path: Path
    title: str
    opens: str
    size: int
    is_model: bool = False
    step: int | None = None
    sample: Path | None = None
    comfyui: str = ""


def what_was_written(folder: RunFolder) -> list[Written]:
    """What is in a run folder for its user, the model first. Takes milliseconds, on a slow disk longer."""
    models = models_of(folder.model_dir, folder.model_file)
    return [*models, *_saves(folder), *_results(folder), *_backups(folder)]


def models_of(model: Path, single: Path) -> Iterator[Written]:
    """The files of the model in a folder, and the same as a single file."""
    if single.is_file():
        facts = all_facts().get(_text(model / MODEL_INFO, "family"))
        is_whole = facts is None or facts.network != "transformer"
        opens, place = (_SINGLE_FILE, "checkpoints") if is_whole else (_TRANSFORMER, "diffusion_models")
        yield Written(single, "Model as a single file", opens, _size(single), is_model=True, comfyui=place)
    if not (model / MODEL_INFO).is_file():
        return
    if (model / _INDEX).is_file():
        opens = _OWN if _text(model / _INDEX, "_class_name") in _OWN_PIPELINES else _DIFFUSERS
        yield Written(model, "Model", opens, _size(model), is_model=True)
        return
    files = sorted(path for path in _entries(model) if path.suffix == ".safetensors" and path.is_file())
    method = _text(model / MODEL_INFO, "adapter", "method")
    for file in files:
        if method == "lora" and file.name in _OF_LORA:
            title, opens = _OF_LORA[file.name]
            place = "loras" if "ComfyUI" in opens else ""
            yield Written(file, title, opens, _size(file), is_model=True, comfyui=place)
        elif method == "embedding":
            yield Written(file, "Embedding", _EMBEDDING, _size(file), is_model=True, comfyui="embeddings")
    if method not in ("lora", "embedding") or not files:
        opens = _CLASSIFIER if _text(model / MODEL_INFO, "family") == "classifier" else _OWN
        yield Written(model, "Model", opens, _size(model), is_model=True)


def _saves(folder: RunFolder) -> Iterator[Written]:
    """The models of earlier steps, the newest first."""
    for saved in saved_models(folder)[::-1]:
        files = [*models_of(saved.folder, saved.file)]
        if not files:
            continue
        title = "LoRA" if files[-1].title.startswith("LoRA") else files[-1].title
        opens = "; ".join(dict.fromkeys(each.opens for each in files))
        samples = sorted(folder.samples_dir.glob(f"step-{saved.step:06d}-[0-9]*.png"))
        size = _size(saved.folder) + _size(saved.file)
        yield Written(
            saved.folder,
            f"{title} of step {saved.step:,}",
            opens,
            size,
            step=saved.step,
            sample=next(iter(samples), None),
        )


def _results(folder: RunFolder) -> Iterator[Written]:
    images = [path for path in _entries(folder.samples_dir) if path.suffix == ".png"]
    if images:
        number = sum(not path.stem.endswith("-grid") for path in images)
        title = f"{number:,} sample image{'s' * (number != 1)}"
        yield Written(folder.samples_dir, title, "any image viewer; their settings are in the files", _size_of(images))
    if folder.report_file.is_file():
        yield Written(folder.report_file, "Report of the run", "any web browser", _size(folder.report_file))
    if _entries(folder.best_dir):
        opens = "Tandem: restore_best, or when the run is resumed"
        yield Written(folder.best_dir, "Weights of the best validation", opens, _size(folder.best_dir))
    if _entries(folder.tensorboard_dir):
        opens = "TensorBoard: the button above the curves"
        yield Written(folder.tensorboard_dir, "TensorBoard logs", opens, _size(folder.tensorboard_dir))


def _backups(folder: RunFolder) -> Iterator[Written]:
    steps = [(int(match[1]), path) for path in _entries(folder.backup_dir) if (match := _STEP.fullmatch(path.name))]
    steps.sort(reverse=True)
    for step, path in steps[:_MAX_BACKUPS]:
        yield Written(path, f"Backup of step {step:,}", "Tandem: Resume", _size(path))
    if rest := [path for _, path in steps[_MAX_BACKUPS:]]:
        title = f"{len(rest)} older backup{'s' * (len(rest) > 1)}"
        yield Written(folder.backup_dir, title, "Tandem: Resume", sum(_size(path) for path in rest))


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path, _ in zip(folder.iterdir(), range(_MAX_FILES), strict=False)]
    except OSError:
        return []


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what cannot be read counts as none."""
    if not path.is_dir():
        return _size_of([path])
    files = (Path(place, name) for place, _, names in os.walk(path) for name in names)
    return _size_of([file for file, _ in zip(files, range(_MAX_FILES), strict=False)])


def _size_of(files: list[Path]) -> int:
    total = 0
    for file in files:
        try:
            total += file.lstat().st_size
        except OSError:
            continue
    return total


def _text(file: Path, *names: str) -> str:
    """A text in a JSON file of groups; empty if there is none."""
    try:
        found: object = read_json(file)
    except (OSError, FileFault):
        return ""
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""
