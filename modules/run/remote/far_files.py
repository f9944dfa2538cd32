"""Small files in Tandem's folder on another machine. A part of the program of far_side.py, which is sent over ssh."""

from __future__ import annotations

import os
import shutil


def read(path: str, most: int = 10_000) -> str:
    """Its first characters; "" if it cannot be read."""
    try:
        with open(path) as file:
            return file.read(most)
    except OSError:
        return ""


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
