"""Standard output that may go away: `| head`, a closed terminal. A run goes on without its audience."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def say(text: str) -> None:
    """Write a line to standard output; once nobody reads any more, nothing."""
    try:
        _write_line(sys.stdout, text)
    except (OSError, ValueError):
        drop_output()


def drop_output() -> None:
    """Send standard output nowhere from now on, so that Python's last flush does not fail either."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def warn(text: str) -> None:
    """Write a line to standard error, which may be gone as well."""
    with suppress(OSError, ValueError):
        _write_line(sys.stderr, text)


def _write_line(stream: TextIO, text: str) -> None:
    stream.write(f"{writable(text, stream)}\n")
    stream.flush()


def writable(text: str, stream: TextIO) -> str:
    """The text with \\x or \\u for what the stream's encoding lacks, such as the odd bytes of a file's name."""
    encoding = stream.encoding or "utf-8"  # None where it writes into memory
    return text.encode(encoding, "backslashreplace").decode(encoding)
