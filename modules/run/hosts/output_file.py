"""The output of a program that runs on another machine, kept in a file of limited size."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from modules.files import open_for_writing

MOST_BYTES: Final = 8 << 20
_CUT: Final = b"(what was printed before is not kept)\n"
_CHUNK: Final = 64 << 10
_REST_WITHIN_S: Final = 2.0


class OutputFile:
    """Copies a pipe to a file until the pipe's end; a file that has become too large begins anew.

    What another machine prints cannot fill this one's disk, and a full disk does not hold up the other machine.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        """Empties the file. Raises OSError."""
        self._file = os.fdopen(open_for_writing(path), "wb", buffering=0)
        self._most_bytes = most_bytes
        self._thread: threading.Thread | None = None

    def copy(self, pipe: IO[bytes]) -> None:
        """Copy from now on, in a thread."""
        self._thread = threading.Thread(target=self._copy, args=(pipe,), name="output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the rest, once the program has ended."""
        if self._thread is None:
            self._file.close()
        else:
            self._thread.join(_REST_WITHIN_S)

    def _copy(self, pipe: IO[bytes]) -> None:
        with self._file, pipe:
            size = 0
            while data := os.read(pipe.fileno(), _CHUNK):
                with suppress(OSError):  # a full disk
                    if size + len(data) > self._most_bytes:
                        self._file.seek(0)
                        self._file.truncate()
                        size = self._file.write(_CUT)
                    size += self._file.write(data)
