"""Small files in Tandem's folder on another machine. A part of the program of far_side.py, which is sent over ssh."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # a name of a run, or of a file or folder of one
_PIECE = 1 << 20


def read(path: str, most: int = 10_000) -> str:
    """Its first characters, with -1 all; "" if it cannot be read."""
    try:
        with open(path) as file:
            return file.read(most)
    except (OSError, ValueError):  # or is no text
        return ""


def read_bytes(path: str, most: int) -> bytes:
    """All of a file of at most so many bytes; b"" of a longer one, and without one."""
    try:
        with open(path, "rb") as file:
            found = file.read(most + 1)
    except OSError:
        return b""
    return found if len(found) <= most else b""


def end_of(path: str, size: int) -> bytes:
    """Its last bytes; b"" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except OSError:
        return b""


def write(path: str, text: str) -> None:
    """Renamed into place, so that nobody reads half of it."""
    partial = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}-{os.getpid()}")
    try:
        with open(partial, "w") as file:
            file.write(text)
        os.replace(partial, path)
    finally:
        remove(partial)


def remove(path: str) -> None:
    """A file, link or folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def listed(folder: str) -> list[str]:
    """The names in it; none without it."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def sha256(path: str, size: int = -1) -> str:
    """Of a file, or of its first bytes; "" without a file, or of a shorter one."""
    digest = hashlib.sha256()
    left = size if size >= 0 else sys.maxsize
    try:
        with open(path, "rb") as file:
            while left and (piece := file.read(min(left, _PIECE))):
                digest.update(piece)
                left -= len(piece)
    except FileNotFoundError:
        return ""
    return digest.hexdigest() if size < 0 or not left else ""


def bytes_in(path: str) -> int:
    """Of all files in a folder."""
    total = 0
    for folder, _, files in os.walk(path):
        for each in files:
            try:
                total += os.lstat(os.path.join(folder, each)).st_size
            except OSError:
                continue
    return total


class StateFiles:
    """What is kept of runs in a folder, each in a file NAME.KIND: the id of the start, the exit code (exit), ..."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, name: str, kind: str) -> str:
        """Of the file."""
        return os.path.join(self._folder, f"{name}.{kind}")

    def read(self, name: str, kind: str, most: int = 10_000) -> str:
        """What is kept of a run; "" if nothing."""
        return read(self.path(name, kind), most)

    def write(self, name: str, kind: str, text: str) -> None:
        """Keep it."""
        write(self.path(name, kind), text)

    def remove(self, name: str, *kinds: str) -> None:
        """Keep these no longer."""
        for kind in kinds:
            remove(self.path(name, kind))

    def names(self, kind: str) -> list[str]:
        """The runs of which there is such a file."""
        return [each[: -len(kind) - 1] for each in listed(self._folder) if each.endswith(f".{kind}")]
