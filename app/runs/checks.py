"""What is known to be missing before a run is started, beyond what makes a setting invalid."""

from __future__ import annotations

import os
from dataclasses import dataclass

from app.base_model import BaseModelInfo, inspect_base_model, other_family
from app.family_declaration import FamilyDeclaration
from app.windows.folder_listing import has_images
from modules.config import Concept, Fault, TrainConfig
from modules.files import expand_home


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
    absent = [(number, concept) for number, concept in enabled if not os.path.exists(expand_home(concept.path))]
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
