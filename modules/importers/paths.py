"""Resolves the paths in another trainer's file."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath

from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.files import whole_path

LEVELS = 4  # parent folders of the file that are tried: OneTrainer's presets lie two below the folder it starts in


class PathResolver:
    """Resolves relative paths against the file's folder and its parents, in which trainers are started."""

    def __init__(self, file: Path) -> None:
        self.file = whole_path(file)
        self.files = [file]

    def find(self, text: str) -> Path | None:
        """The existing file or folder; None if there is none."""
        return next((path for path in self._candidates(text) if _exists(path)), None)

    def path(self, text: str) -> str:
        """The absolute path: the existing one, else in the file's folder; absolute paths of another OS are kept."""
        found = self.find(text)
        if found is not None:
            return str(found)
        return text if _is_absolute(text) else str(self._candidates(text)[0])

    def is_folder(self, text: str) -> bool:
        """Whether the folder exists on this machine."""
        found = self.find(text)
        return found is not None and found.is_dir()

    def folders_in(self, text: str) -> list[Path]:
        """The subfolders of a folder, sorted by name; empty if it cannot be read."""
        return sorted(path for path in self._entries(text) if path.is_dir())

    def has_files(self, text: str, suffix: str) -> bool:
        """Whether the folder contains files with this suffix."""
        return any(path.suffix.lower() == suffix for path in self._entries(text))

    def has_images(self, text: str) -> bool:
        """Whether the folder itself contains images."""
        return any(path.suffix.lower() in IMAGE_SUFFIXES for path in self._entries(text))

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
        return [whole_path(folder / text.replace("\\", "/")) for folder in folders]


def _is_absolute(text: str) -> bool:
    return Path(text).is_absolute() or PureWindowsPath(text).is_absolute()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long, or contains a lone surrogate
        return False
