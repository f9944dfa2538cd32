"""What the three kinds of sources have in common: their files, and reading one from any byte on."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from modules.files import FileFault, control_character

WAIT_S: Final = 0.5  # after the first try that fails, then twice as long each time
_ASKED: Final = 3  # times
_NOT_ON_WINDOWS: Final = '<>:"|?*'
_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteFile:
    """A file there. `name` is its path below the address, as the server tells it (`local_name`); `tag` changes with
    the content, "" if none is told; `digest` is that of the content, if it is known: SHA-256, or git's of a blob."""

    name: str
    place: str  # its URL or key
    size: int
    tag: str = ""
    digest: str = ""


class Changed(Exception):
    """The file there is another one now, or cannot be read from the middle: it has to be read from its start."""


class Source(Protocol):
    """Errors of both are FileFault or OSError."""

    def files(self) -> Iterator[RemoteFile]:
        """All files of the address."""

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of a file from `start` on. Raises Changed."""


def local_name(name: str) -> str:
    """A name from outside as a path below the copy. Raises FileFault for one that leads elsewhere, or that no file can
    have here."""
    parts = name.split("/")
    is_odd = name.startswith("/") or "\\" in name or ".." in parts or posixpath.normpath(name) in (".", "/")
    if is_odd or control_character(name) or len(name) > 1024 or any(len(part.encode()) > 255 for part in parts):
        raise FileFault(f"has a file {name[:200]!a}, whose name cannot be one here")
    if os.name == "nt" and any(each in name for each in _NOT_ON_WINDOWS):
        raise FileFault(f"has a file {name[:200]!a}, whose name Windows does not allow")
    return posixpath.normpath(name)


def retried(ask: Callable[[], _T]) -> _T:
    """The answer to a question, which is asked again after an OSError."""
    for number in range(_ASKED - 1):
        try:
            return ask()
        except OSError:
            time.sleep(WAIT_S * 2**number)
    return ask()
