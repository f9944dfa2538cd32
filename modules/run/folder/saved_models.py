"""The models of earlier steps that a run has saved (`save_every`), in saves/: which there are, and which to remove."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.files import is_link
from modules.run.folder.run_folder import SAVES_FOLDER_NAME, RunFolder

MODEL_INFO: Final = "tandem.json"  # in the folder of every saved model
_NAME: Final = re.compile(r"step-(\d{6,16})")


@dataclass(frozen=True)
class SavedModel:
    """The model of one step."""

    step: int
    folder: Path
    file: Path  # the same as a single file, if the run writes one


def saved_models(run: RunFolder) -> list[SavedModel]:
    """Those that are complete, by step; none if the folder is missing, cannot be read or is a link."""
    try:
        names = [] if is_link(run.saves_dir) else [path.name for path in run.saves_dir.iterdir()]
    except OSError:
        return []
    steps = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
    found = [SavedModel(step, run.saved_dir(step), run.saved_file(step)) for step in steps]
    return [each for each in found if not is_link(each.folder) and (each.folder / MODEL_INFO).is_file()]


def saved_step(path: Path) -> int | None:
    """The step whose saved model `path` is, or is a file in; None if it is no such folder or file."""
    for folder in (path.absolute(), path.absolute().parent):
        if folder.parent.name == SAVES_FOLDER_NAME and (match := _NAME.fullmatch(folder.name)):
            return int(match[1])
    return None


def outdated_models(run: RunFolder, keep: int, step: int) -> list[SavedModel]:
    """All but the newest `keep` (0: none), once that of `step` is complete.

    Those of later steps are from before the run went back to an earlier backup: they are the oldest.
    """
    found = sorted(saved_models(run), key=lambda each: (each.step <= step, each.step))
    return found[:-keep] if keep else []
