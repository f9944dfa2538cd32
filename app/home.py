"""The folder of the user's files, outside the program: the window's current one, in which relative paths start."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from platformdirs import user_documents_path

from app.preferences import Preferences
from modules.config import TrainConfig

_RUNS: Final = Path(TrainConfig.model_fields["runs_dir"].default)


def enter_home(preferences: Preferences) -> str:
    """Make the chosen folder the current one; returns why that cannot be done, or an empty string.

    At the very first start, "Tandem" in the user's documents is chosen, unless the current folder has runs already.
    Where none is chosen, as in a window that is older than this choice, the folder it is started from stays.
    """
    if not (preferences.welcomed or preferences.home or _RUNS.is_dir()):
        with suppress(OSError):  # else it stays here, as the welcome shows
            folder = user_documents_path() / "Tandem"
            folder.mkdir(parents=True, exist_ok=True)
            move_home(preferences, folder)
    elif preferences.home:
        try:  # it is not made anew: its disk may be missing
            _enter(Path(preferences.home))
        except OSError as error:
            return (
                f"{preferences.home} cannot be used: {error.strerror or error}. Until the next start, relative paths "
                f"start in {current_folder()}. Choose another folder: Open > Folder of your files."
            )
    os.chdir(current_folder())  # it may have been deleted
    return ""


def move_home(preferences: Preferences, folder: Path) -> None:
    """Choose this folder and make it the current one. Raises OSError if it cannot be used."""
    _enter(folder)
    preferences.choose_home(folder)


def check_home(folder: Path) -> None:
    """Raises OSError if no file can be written there."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def _enter(folder: Path) -> None:
    check_home(folder)
    os.chdir(folder)


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
