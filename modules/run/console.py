"""Console output that survives a closed reader (`| head`, a closed terminal): the run continues silently.

All of it may quote the name of an image or another machine, which no terminal may obey.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, TextIO

from modules.files import printable

_CLEAR_LINE: Final = "\r\x1b[K"
LONGEST_TEXT: Final = 1 << 20  # characters that are written at once, to a terminal or a log


def echo(text: str) -> None:
    """Write a line to standard output, with passwords masked; discard all output once nobody reads it."""
    try:
        _write_line(sys.stdout, text)
    except (OSError, ValueError):
        discard_stdout()


def is_terminal() -> bool:
    """Whether a person reads standard output, and no log keeps it."""
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except (OSError, ValueError):  # closed
        return False


def show_secret(text: str) -> bool:
    """Write a line with a secret to standard output if that is a terminal and no log; returns whether it is."""
    if not is_terminal():
        return False
    try:
        _write_line(sys.stdout, text, mask=False)
    except (OSError, ValueError):
        discard_stdout()
    return True


def discard_stdout() -> None:
    """Redirect standard output to the null device, so that Python's flush at exit does not fail either."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def warn(text: str) -> None:
    """Write a line to standard error, with passwords masked; ignore a closed one."""
    with suppress(OSError, ValueError):
        _write_line(sys.stderr, text)


def _write_line(stream: TextIO, text: str, *, mask: bool = True) -> None:
    clear = _CLEAR_LINE if sys.platform != "win32" and stream.isatty() else ""  # a rank's progress bar may be there
    stream.write(f"{clear}{printable_on(stream, text, mask=mask)}\n")
    stream.flush()


def printable_on(stream: TextIO, text: str, *, mask: bool = True) -> str:
    """`printable` lines, with escapes also for characters that the stream's encoding lacks."""
    encoding = stream.encoding or "utf-8"  # None for an in-memory stream
    return printable(text, LONGEST_TEXT, lines=True, mask=mask).encode(encoding, "backslashreplace").decode(encoding)
