"""The files of a run that ComfyUI opens, and putting them into its folder."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from app.runs.written import models_of
from modules.files import is_link, remove_partial, replacing
from modules.run import RunFolder
from modules.run.folder.saved_models import saved_models


@dataclass(frozen=True)
class ComfyFile:
    """A file of a run: what it is, the folder that it belongs to below ComfyUI's `models`, and its name there."""

    title: str
    file: Path
    folder: str
    name: str


def files_for_comfyui(run: RunFolder) -> list[ComfyFile]:
    """The model, and those of earlier steps, the newest first."""
    models = [(run.name, run.model_dir, run.model_file)]
    models += [(f"{run.name}-step-{each.step}", each.folder, each.file) for each in saved_models(run)[::-1]]
    found = []
    for name, folder, single in models:
        for each in models_of(folder, single):
            if each.comfyui and not is_link(each.path):
                title = each.title if folder == run.model_dir else f"{each.title}, {folder.name}"
                # ComfyUI's token of an embedding is the name of its file
                named = each.path.name if each.comfyui == "embeddings" else f"{name}.safetensors"
                found.append(ComfyFile(title, each.path, each.comfyui, named))
    return found


def models_folder(chosen: Path) -> Path | None:
    """The folder `models` of ComfyUI, of the folder that it is in, as in its portable version, or of itself."""
    candidates = (chosen / "models", chosen / "ComfyUI" / "models", chosen if chosen.name == "models" else None)
    return next((each for each in candidates if each is not None and (each / "checkpoints").is_dir()), None)


def put(file: Path, target: Path) -> str:
    """Make `file` known under the name `target`, also in place of another file: "linked", or "copied" where that is
    not possible. A hard link takes no space, and stays as it is when the run saves anew. Raises OSError.
    """
    target.parent.mkdir(exist_ok=True)
    remove_partial(target.parent, only="")  # of windows that were closed while they copied
    with replacing(target, ".part") as partial:  # ComfyUI would list half a .safetensors
        try:
            os.link(file, partial)
        except OSError:  # another disk, or a file system without hard links, of which each has an error of its own
            shutil.copyfile(file, partial)
            return "copied"
    return "linked"


def free_name(target: Path) -> Path:
    """The next free name: cats.safetensors becomes cats-2.safetensors."""
    names = (target.with_stem(f"{target.stem}-{number}") for number in range(2, 10_000))
    return next(name for name in names if not os.path.lexists(name))
