"""What the three kinds of sources have in common: their files, and reading one from any byte on."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from modules.files import FileFault, control_character


@dataclass(frozen=True)
class RemoteFile:
    """A file there. `name` is its path below the copy's folder; `tag` changes with the content, "" if none is told."""

    name: str
    place: str  # its URL or key
    size: int
    tag: str = ""


class Changed(Exception):
    """The file there is another one now, or cannot be read from the middle: it has to be read from its start."""


class Source(Protocol):
    """Errors of both are FileFault or OSError."""

    def files(self) -> Iterator[RemoteFile]:
        """All files of the address."""

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of a file from `start` on. Raises Changed."""


def local_name(name: str) -> str:
    """A name from outside as a path below the copy. Raises FileFault for one that leads elsewhere, on any system."""
    is_odd = name.startswith("/") or any(each in name for each in "\\\0:") or control_character(name)
    if is_odd or ".." in name.split("/") or len(name) > 1024 or posixpath.normpath(name) in (".", "/"):
        raise FileFault(f"has a file {name[:200]!a}, whose name leads elsewhere")
    return posixpath.normpath(name)
