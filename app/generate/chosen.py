"""Generated images to train on: copied, with their prompts as captions, into a folder that is a concept."""

from __future__ import annotations

import filecmp
import itertools
import shutil
from pathlib import Path
from typing import Final

from app.monitor.tiles import read_settings
from app.repair import new_item
from app.state import AppState
from modules.files import expand_home, printable, replacing

FOLDER: Final = "chosen"  # below that of the images, where the page does not list it


def use_as_data(state: AppState, file: Path) -> str:
    """Copy an image and make its folder a concept, as one step to undo; returns what was done, or why it was not."""
    folder = file.parent / FOLDER
    try:
        copied = copy_with_caption(file, folder)
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror or error}."
    concepts = state.draft.get("concepts")
    items = concepts if isinstance(concepts, list) else []
    known = {expand_home(str(each.get("path"))).absolute() for each in items if isinstance(each, dict)}
    if folder.absolute() not in known:
        state.draft.insert("concepts", len(items), {**new_item("concepts"), "path": str(folder)})
        return f"{copied.name} is in {printable(str(folder), 200)}, which is a concept now. Ctrl+Z takes it out again."
    state.notify("captions")  # the folder is read again
    return f"{copied.name} is in {printable(str(folder), 200)}, which is a concept already."


def copy_with_caption(file: Path, folder: Path) -> Path:
    """The copy of an image in `folder`, under another name if that is taken by another image. Raises OSError."""
    folder.mkdir(exist_ok=True)
    others = (f"{file.stem}-{number}{file.suffix}" for number in itertools.count(1))
    places = (folder / name for name in itertools.chain([file.name], others))
    copied = next(place for place in places if not place.exists() or filecmp.cmp(file, place, shallow=False))
    with replacing(copied) as partial:
        shutil.copyfile(file, partial)
    if prompt := str(read_settings(file).get("prompt", "")).strip():
        with replacing(copied.with_suffix(".txt")) as partial:
            partial.write_text(f"{prompt}\n", "utf-8")
    return copied
