"""Imports other trainers' settings as a Tandem config, with a report of what was not imported."""

from modules.importers.from_file import foreign_trainer, import_file
from modules.importers.report import PROBLEMS, ImportEntry, ImportResult
from modules.importers.trainers import TRAINERS, Trainer

__all__ = [
    "PROBLEMS",
    "TRAINERS",
    "ImportEntry",
    "ImportResult",
    "Trainer",
    "foreign_trainer",
    "import_file",
]
