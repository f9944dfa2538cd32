"""Standard output and standard error that never make a run wait: for a terminal after Ctrl-S, or a pipe nobody reads.

A thread writes what is queued. As long as it is read, `flush` waits for it, so that both streams stay in order.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

MAX_QUEUED_BYTES: Final = 256 * 1024
FLUSH_WITHIN_S: Final = 0.25  # longer than a terminal or a pipe that is read ever takes
LEAVE_WITHIN_S: Final = 2.0
_TRY_AGAIN_S = 0.05


class QueuedOutput(io.TextIOBase):
    """A text stream in front of `stream`; what does not fit into the queue is dropped, and counted in lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._newline = os.linesep if sys.platform == "win32" else "\n"
        self._is_line_buffered = bool(getattr(stream, "line_buffering", False))
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._is_dropping, self._dropped_lines = False, 0
        self._ends_line = True  # what was queued last
        self._is_stalled = False  # the last flush gave up
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self._stream.encoding or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """What happens to characters that the encoding lacks."""
        return self._stream.errors or "strict"

    @property
    def buffer(self) -> object:
        """The stream's own, which is not queued."""
        return getattr(self._stream, "buffer", None)

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Queue `text`, or drop it if the queue is full. Raises OSError if writing failed since the last call."""
        data = text.replace("\n", self._newline).encode(self.encoding, self.errors)
        if self._process != os.getpid():
            self._start()  # in a fork, which has no thread
        with self._changed:
            self._raise_error()
            if self._queued_bytes and (self._is_dropping or self._queued_bytes + len(data) > MAX_QUEUED_BYTES):
                self._is_dropping = True
                self._dropped_lines += text.count("\n")
                return len(text)
            self._ends_line = data.endswith(b"\n")
            self._queued.append(data)
            self._queued_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="output", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if self._is_line_buffered and "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Wait a moment until everything is written, unless it already was in vain. Raises OSError."""
        self._wait_until_written(FLUSH_WITHIN_S)

    def leave(self) -> None:
        """Give a slow reader the last chance before the process ends."""
        with suppress(OSError):
            self._is_stalled = False
            self._wait_until_written(LEAVE_WITHIN_S)

    def _wait_until_written(self, seconds: float) -> None:
        if self._process != os.getpid():
            return
        with self._changed:
            if not self._is_stalled:
                self._is_stalled = not self._changed.wait_for(lambda: not self._queued_bytes, seconds)
            self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # In the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queued))
                data = b"".join(self._queued)
                self._queued.clear()
            error = self._write_all(data)
            with self._changed:
                self._error = error or self._error
                self._queued_bytes -= len(data)
                if not self._queued_bytes:
                    self._is_stalled = False
                    self._note_dropped()
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> OSError | None:
        # not through Python's buffer, whose lock would be held while the process ends
        buffer = self._stream.buffer
        raw = getattr(buffer, "raw", buffer)
        left = memoryview(data)
        while left:
            try:
                written = raw.write(left[: 1 << 16])
            except (OSError, ValueError) as error:
                return error if isinstance(error, OSError) else OSError(str(error))
            if not written:  # another program has made the terminal non-blocking
                time.sleep(_TRY_AGAIN_S)
            left = left[written or 0 :]
        return None

    def _note_dropped(self) -> None:
        if self._dropped_lines:
            start = "" if self._ends_line else self._newline
            text = f"{start}[lines left out while nobody read this output: {self._dropped_lines}]{self._newline}"
            note = text.encode(self.encoding, "replace")
            self._queued.append(note)
            self._queued_bytes += len(note)
            self._ends_line = True
        self._is_dropping, self._dropped_lines = False, 0


@contextmanager
def queued_output() -> Iterator[None]:
    """Inside the block standard output and standard error are queued, if they are terminals or pipes."""
    names = [name for name in ("stdout", "stderr") if _can_stall(getattr(sys, name))]
    before = {name: getattr(sys, name) for name in names}
    for name, stream in before.items():
        with suppress(OSError, ValueError):
            stream.flush()
        setattr(sys, name, QueuedOutput(stream))
    try:
        yield
    finally:
        for name, stream in before.items():
            queued = getattr(sys, name)
            if isinstance(queued, QueuedOutput):
                queued.leave()
                setattr(sys, name, stream)


def _can_stall(stream: object) -> bool:
    if not isinstance(stream, io.TextIOWrapper):  # a notebook's, a test's, or queued already
        return False
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)
