"""Removing what a run that was killed has left half-written."""

from __future__ import annotations

from modules.files import remove_partial
from modules.run.folder.run_folder import RunFolder


def remove_half_written(folder: RunFolder) -> None:
    """Leave only complete backups, weights, models and images. Call it only while nobody trains in the folder."""
    remove_partial(folder.path, only=folder.model_dir.name)  # a conversion may be writing beside it
    for each in (folder.backup_dir, folder.best_dir, folder.samples_dir):
        remove_partial(each)
