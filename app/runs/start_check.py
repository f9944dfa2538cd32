"""The checks between Train or Queue and the start: those of the window still under way, then what is missing."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from app.base_model import BaseModelInfo, inspect_base_model, other_family
from app.family_declaration import FamilyDeclaration
from app.state import AppState
from app.widgets.later import later
from app.windows.dialog import Dialog
from app.windows.faults import show_faults
from app.windows.folder_listing import has_images
from modules.config import Concept, Fault, TrainConfig
from modules.facts import family_names
from modules.files import expand_home
from modules.files.addresses import is_address

_POLL_MS: Final = 50
_DIALOG_SHOWN_MS: Final = 300


class Waiting:
    """One check under way; a dialog to give it up shows itself after a moment."""

    def __init__(self, owner: tk.Misc, cancelled: Callable[[], object]) -> None:
        self._owner, self._cancelled = owner, cancelled
        self._dialog: Dialog | None = None
        self.is_wanted = True
        later(owner, _DIALOG_SHOWN_MS, self._show)

    def end(self) -> None:
        """It is over."""
        self.is_wanted = False
        if self._dialog is not None:
            self._dialog.close()

    def _show(self) -> None:
        if self.is_wanted:
            about = "The model family and the base model are being read."
            self._dialog = Dialog(self._owner, "Checking the settings…", about)
            self._dialog.on_cancel = self._cancel
            self._dialog.button("Cancel", self._cancel)
            self._dialog.show()

    def _cancel(self) -> None:
        self.end()
        self._cancelled()


class StartCheck:
    """Calls `ended` when a check is over or was cancelled, before what is missing is listed or the start goes on."""

    def __init__(self, owner: tk.Misc, state: AppState, ended: Callable[[], object]) -> None:
        self._owner, self._state, self._ended = owner, state, ended
        self._anyway = ""

    def run(self, go_on: Callable[[TrainConfig], object], anyway: str = "Start all the same") -> None:
        """Check the current settings; if nothing is missing, or the user wants it `anyway`, `go_on` gets them."""
        self._anyway = anyway
        waiting, config = Waiting(self._owner, self._ended), self._state.draft.config
        if config is None or config.family not in family_names():
            self._wait_for_family(waiting, go_on)
            return

        def checked(missing: Missing) -> None:
            if waiting.is_wanted and missing.certain:
                self._end(waiting)
                self._decide(config, missing, go_on)
            else:
                self._wait_for_family(waiting, go_on)

        # our families bring no data, so what is missing is known before they are loaded
        self._state.background.run(lambda: missing_for_training(config, None, ""), checked)

    def _wait_for_family(self, waiting: Waiting, go_on: Callable[[TrainConfig], object]) -> None:
        family, config = self._state.family, self._state.draft.config
        if not waiting.is_wanted:
            return  # cancelled
        if config is not None and family.declaration is None and not family.error:
            later(self._owner, _POLL_MS, lambda: self._wait_for_family(waiting, go_on))
            return

        def checked(missing: Missing) -> None:
            if waiting.is_wanted:
                self._end(waiting)
                self._decide(config, missing, go_on)

        if config is None:  # the family's declaration has shown an error
            self._end(waiting)
            self._state.notify("invalid")
        else:
            declaration, error = family.declaration, family.error
            self._state.background.run(lambda: missing_for_training(config, declaration, error), checked)

    def _end(self, waiting: Waiting) -> None:
        waiting.end()
        self._ended()

    def _decide(self, config: TrainConfig | None, missing: Missing, go_on: Callable[[TrainConfig], object]) -> None:
        """Go on, or list what is missing."""
        if config is None:
            return
        if missing.faults:
            anyway = None if missing.certain else partial(go_on, config)
            why = "Training cannot start yet." if missing.certain else "Training would probably fail."
            show_faults(self._owner, self._state, why, missing.faults, anyway, self._anyway)
        else:
            go_on(config)


@dataclass(frozen=True)
class Missing:
    """What is missing; `certain` if the run cannot start with it. A base model is judged by its files' names only."""

    faults: tuple[Fault, ...] = ()
    certain: bool = True


def missing_for_training(config: TrainConfig, declaration: FamilyDeclaration | None, family_error: str) -> Missing:
    """What would end the run at its start. Asks the disk: call it off the Tk thread.

    `declaration` of the family is None if it could not be loaded, for the reason `family_error`.
    """
    certain = [Fault("family", family_error)] if family_error else []
    brings_data = declaration is not None and declaration.brings_data
    if not brings_data:
        certain += _missing_images(config)
    base = inspect_base_model(config.base_model) if config.base_model else BaseModelInfo()
    error = base.error or other_family(base, config.family)
    doubtful = [Fault("base_model", error)] if error else []
    return Missing((*certain, *doubtful), certain=bool(certain))


def _missing_images(config: TrainConfig) -> list[Fault]:
    """Folders that are not there, or that no image to train on is in any folder."""
    enabled = [(number, concept) for number, concept in enumerate(config.concepts) if concept.enabled]
    if not enabled:
        return [Fault("concepts", "There are no images to train on: add a folder under Data.")]
    here = [(number, concept) for number, concept in enabled if not is_address(concept.path)]
    absent = [(number, concept) for number, concept in here if not os.path.exists(expand_home(concept.path))]
    if absent:
        return [
            Fault(f"concepts.{number}.path", f"The folder {concept.path} does not exist: correct it, or switch it off.")
            for number, concept in absent
        ]
    trained = [(number, concept) for number, concept in enabled if concept.kind == "train"]
    if any(_may_have_images(concept) for _, concept in trained):
        return []
    number = trained[0][0] if trained else enabled[0][0]
    return [Fault(f"concepts.{number}.path", "There are no images to train on: no folder for training has any.")]


def _may_have_images(concept: Concept) -> bool:
    """Whether images are in the concept's folder; archives are unpacked by the run."""
    path = expand_home(concept.path)
    return not path.is_dir() or has_images(path, with_subfolders=concept.include_subfolders)
