"""Settings of other trainers as a Tandem config, with the list of what was not carried over."""

from modules.config.importing.files import import_file
from modules.config.importing.report import Entry, Imported, ImportReport
from modules.config.importing.trainers import TRAINERS, Trainer

__all__ = ["TRAINERS", "Entry", "ImportReport", "Imported", "Trainer", "import_file"]
