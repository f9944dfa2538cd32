"""Removing what a run that was killed has left half-written."""

from __future__ import annotations

from glob import escape

from modules.files import remove_partial
from modules.run.folder.run_folder import RunFolder


def remove_half_written(folder: RunFolder) -> None:
    """Leave only complete backups, weights, models and images. Call it only while nobody trains in the folder."""
    for own in (folder.model_dir, folder.model_file):  # a conversion may be writing beside them
        remove_partial(folder.path, only=escape(own.name))
    for each in (folder.backup_dir, folder.best_dir, folder.samples_dir):
        remove_partial(each)
