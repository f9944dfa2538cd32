"""What the file chooser shows of a folder: its entries, and how many images are in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from modules.config import ConfigError
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.run import RunFolder

Purpose = Literal["open", "save", "folder", "any"]  # any: a file or a folder

_MOST_LISTED: Final = 20_000
_MOST_ENTRIES: Final = 5000  # looked at in one folder with its subfolders; four times as many until _MANY are found
_MANY: Final = 1000
_ENDINGS: Final = tuple(IMAGE_SUFFIXES)


@dataclass(frozen=True)
class Item:
    """One row of the list."""

    name: str
    is_folder: bool
    changed: str


def list_folder(folder: Path, endings: tuple[str, ...], purpose: Purpose) -> list[Item]:
    """The entries that are not hidden, folders first. Raises OSError, and ConfigError if there is no such folder."""
    found: list[Item] = []
    if not os.path.isdir(folder):
        raise ConfigError(f"There is no folder {folder}.")
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir()
            is_listed = is_folder or (purpose != "folder" and (not endings or entry.name.lower().endswith(endings)))
            if is_listed and not entry.name.startswith("."):
                try:
                    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.stat().st_mtime))
                except OSError:
                    changed = ""  # a dangling link
                found.append(Item(entry.name, is_folder, changed))
            if len(found) >= _MOST_LISTED:
                break
    return sorted(found, key=lambda item: (not item.is_folder, item.name.lower()))


@dataclass(frozen=True)
class Counted:
    """What a chooser of folders counts in them: its name, and the number in a folder as text, "" if none."""

    word: str
    count: Callable[[Path], str]


def count_images(folder: Path) -> str:
    """The number of images in a folder and its subfolders: "40", "1,000+" if it is too large to look at; "" if none.

    Where it stopped depends on the order of the files, so that of a large folder is told as a power of ten: else it
    and the folder that it is in had different numbers.

    Hidden files and links to folders are left out, as they are when a concept is read. Call it off the Tk thread.
    """
    found = seen = 0
    left = [folder]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST_ENTRIES and (found >= _MANY or seen > 4 * _MOST_ENTRIES):
                        return f"{10 ** (len(str(found)) - 1):,}+" if found else ""
                    if entry.name.startswith("."):
                        continue
                    if entry.name.lower().endswith(_ENDINGS):
                        found += 1
                    elif entry.is_dir(follow_symlinks=False):
                        left.append(Path(entry.path))
        except OSError:
            continue
    return f"{found:,}" if found else ""


def count_runs(folder: Path) -> str:
    """The number of runs in a folder; "" if none. Call it off the Tk thread."""
    try:
        with os.scandir(folder) as entries:
            found = sum(RunFolder(Path(entry.path)).config_file.is_file() for entry in entries if entry.is_dir())
    except OSError:
        return ""
    return f"{found:,}" if found else ""


IMAGES: Final = Counted("image", count_images)
RUNS: Final = Counted("run", count_runs)


def has_images(folder: Path, *, with_subfolders: bool = True) -> bool:
    """Whether an image is in a folder, as a concept is read: links are followed. Call it off the Tk thread.

    What is too large to look at counts as having some, and so does what cannot be read.
    """
    seen, left, visited = 0, [folder], set[str]()
    while left:
        current = left.pop()
        if (real := os.path.realpath(current)) in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    seen += 1
                    if entry.name.startswith("."):
                        continue
                    if entry.name.lower().endswith(_ENDINGS) or seen > _MOST_ENTRIES:
                        return True
                    if with_subfolders and entry.is_dir():
                        left.append(Path(entry.path))
        except OSError:
            return True
    return False
