"""Console output that survives a closed reader (`| head`, a closed terminal): the run continues silently."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from modules.files import mask_secrets


def echo(text: str) -> None:
    """Write a line to standard output, with passwords masked; discard all output once nobody reads it."""
    try:
        _write_line(sys.stdout, mask_secrets(text))
    except (OSError, ValueError):
        discard_stdout()


def show_secret(text: str) -> bool:
    """Write a line with a secret to standard output if that is a terminal and no log; returns whether it is."""
    try:
        if sys.stdout is None or not sys.stdout.isatty():
            return False
        _write_line(sys.stdout, text)
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
        _write_line(sys.stderr, mask_secrets(text))


def _write_line(stream: TextIO, text: str) -> None:
    stream.write(f"{escape_unencodable(text, stream)}\n")
    stream.flush()


def escape_unencodable(text: str, stream: TextIO) -> str:
    """`text` with \\x or \\u escapes for characters that the stream's encoding lacks, e.g. undecodable file names."""
    encoding = stream.encoding or "utf-8"  # None for an in-memory stream
    return text.encode(encoding, "backslashreplace").decode(encoding)
