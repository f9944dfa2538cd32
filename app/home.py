"""The folder of the user's files, outside the program: the window's current one, in which relative paths start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from platformdirs import user_documents_path

from app.preferences import Preferences, preferences_file
from modules.config import TrainConfig

_RUNS: Final = Path(TrainConfig.model_fields["runs_dir"].default)


def enter_home(preferences: Preferences) -> str:
    """Make the chosen folder the current one; returns why that cannot be done, or an empty string.

    At the very first start, "Tandem" in the user's documents is chosen, unless the current folder has runs already.
    Where none is chosen, as in a window that is older than this choice, the folder it is started from stays.
    """
    is_new = not (preferences.welcomed or preferences.home or preferences_file().exists())
    if is_new and not _RUNS.is_dir():
        folder = user_documents_path() / "Tandem"
        if not move_home(preferences, folder):
            preferences.save()
        return ""  # it stays here, as the welcome shows
    problem = move_home(preferences, Path(preferences.home)) if preferences.home else ""
    return problem and f"{problem} Relative paths start in {current_folder()} until the next start."


def move_home(preferences: Preferences, folder: Path) -> str:
    """Choose this folder and make it the current one; returns why that cannot be done, or an empty string."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        return f"The folder of your files, {folder}, cannot be used: {error.strerror or error}."
    preferences.home = str(folder)
    return ""


def current_folder() -> Path:
    """The current folder, or the user's home if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path.home()


def with_tilde(folder: Path) -> str:
    """The folder's path, shorter in the user's home: "~/Documents/Tandem"."""
    home = Path.home()
    return str("~" / folder.relative_to(home)) if folder.is_relative_to(home) else str(folder)
