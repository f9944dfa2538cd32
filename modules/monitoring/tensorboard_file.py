"""A TensorBoard event file whose disk may fail: records are kept and written once it is well again."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from modules.files import open_for_writing, printable

_FLUSH_EVERY_S: Final = 5.0
_MOST_BYTES: Final = 32 << 20  # kept while the disk accepts no writes


class TensorBoardFile:
    """Appends records in a thread of its own; a failing disk delays them, with one warning, but never raises."""

    def __init__(self, folder: Path, warn: Callable[[str], object]) -> None:
        # as TensorBoard's own writer names them: it reads all files with "tfevents" in the name
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._path, self._warn = folder / name, warn
        self._records = queue.SimpleQueue[bytes | None]()
        self._pending = bytearray()  # checksummed records, and the rest of one of which the disk took a part
        self._has_warned = False
        self._thread = threading.Thread(target=self._write_records, name="tensorboard", daemon=True)
        self._thread.start()

    def add(self, event: bytes) -> None:
        """Append an encoded Event."""
        self._records.put(event)

    def close(self) -> None:
        """Write what is still buffered."""
        self._records.put(None)
        self._thread.join()

    # The thread

    def _write_records(self) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        checksummed = RecordWriter(self)
        flush_at = time.monotonic()  # the first record at once
        while True:
            with suppress(queue.Empty):
                event = self._records.get(timeout=max(0.0, flush_at - time.monotonic()) if self._pending else None)
                if event is None:
                    break
                if len(self._pending) < _MOST_BYTES:
                    checksummed.write(event)
            if time.monotonic() >= flush_at:
                self._flush()
                flush_at = time.monotonic() + _FLUSH_EVERY_S
        self._flush()

    def write(self, data: bytes) -> None:
        """Called by RecordWriter."""
        self._pending += data

    def _flush(self) -> None:
        try:
            if not self._pending:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open_for_writing(self._path, append=True)
            try:
                del self._pending[: os.write(file, self._pending)]
            finally:
                os.close(file)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"The files for TensorBoard in {printable(self._path.parent)} cannot be written "
                    f"({error.strerror or error}). Training continues; what they lack is written once that is possible."
                )
