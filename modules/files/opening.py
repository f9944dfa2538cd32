"""Opening of regular files only: a FIFO or a terminal would block the reader, and a device has no end."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FileFault(ValueError):
    """What is wrong with the content or the kind of a file: a phrase that follows its name."""


def open_file(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading, never waiting for one. Raises OSError, or FileFault if it is no regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a null character in the name
        raise FileFault(f"has no valid name ({error})") from None
    except OSError as error:
        require_regular(os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG)  # a socket cannot be opened
        raise error from None
    try:
        require_regular(os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(mode: int) -> None:
    """Raises FileFault unless the st_mode is a regular file's."""
    if stat.S_ISREG(mode):
        return
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")
    raise FileFault(f"is {kind}, not a file")
