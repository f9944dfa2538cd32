"""Where the paths in another trainer's file point to."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath

from modules.config.concept import PICTURE_SUFFIXES

LEVELS = 4  # how many folders above the file are tried: OneTrainer's presets lie two below the folder it starts in


class Places:
    """Relative paths are looked for in the file's folder and those above it, which is where trainers start."""

    def __init__(self, file: Path) -> None:
        self.file = Path(os.path.abspath(file))
        self.files = [file]

    def find(self, text: str) -> Path | None:
        """The file or folder that is meant; None where there is none."""
        return next((place for place in self._candidates(text) if _exists(place)), None)

    def path(self, text: str) -> str:
        """The path in full: where it is found, else beside the file; one of another system stays as it is."""
        found = self.find(text)
        if found is not None:
            return str(found)
        return text if _is_absolute(text) else str(self._candidates(text)[0])

    def is_folder(self, text: str) -> bool:
        """Whether there is such a folder on this machine."""
        found = self.find(text)
        return found is not None and found.is_dir()

    def folders_in(self, text: str) -> list[Path]:
        """The folders inside a folder, by name; none where it cannot be read."""
        return sorted(path for path in self._entries(text) if path.is_dir())

    def has_files(self, text: str, suffix: str) -> bool:
        """Whether a folder has files with this ending."""
        return any(path.suffix.lower() == suffix for path in self._entries(text))

    def has_pictures(self, text: str) -> bool:
        """Whether pictures lie in the folder itself."""
        return any(path.suffix.lower() in PICTURE_SUFFIXES for path in self._entries(text))

    def _entries(self, text: str) -> list[Path]:
        found = self.find(text)
        try:
            return list(found.iterdir()) if found is not None else []
        except OSError:
            return []

    def _candidates(self, text: str) -> list[Path]:
        if _is_absolute(text):
            return [Path(text)]
        folders = self.file.parents[: LEVELS + 1]
        return [Path(os.path.normpath(folder / text.replace("\\", "/"))) for folder in folders]


def _is_absolute(text: str) -> bool:
    return Path(text).is_absolute() or PureWindowsPath(text).is_absolute()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, or half a character
        return False
