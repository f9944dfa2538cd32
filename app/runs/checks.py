"""What is known to be missing before a run is started, beyond what makes a setting invalid."""

from __future__ import annotations

from dataclasses import dataclass

from app.base_model import BaseModelInfo, inspect_base_model, other_family
from app.family_declaration import FamilyDeclaration
from modules.config import Fault, TrainConfig


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
    if not brings_data and not any(concept.enabled for concept in config.concepts):
        certain.append(Fault("concepts", "There are no images to train on: add a folder under Data."))
    base = inspect_base_model(config.base_model) if config.base_model else BaseModelInfo()
    error = base.error or other_family(base, config.family)
    doubtful = [Fault("base_model", error)] if error else []
    return Missing((*certain, *doubtful), certain=bool(certain))
