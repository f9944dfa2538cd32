"""events.jsonl: what happened in a run, one JSON object a line, for window, command line and people."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

PROTOCOL_VERSION: Final = 1
Event = dict[str, object]

# These may wait for a companion; everything else is rare and wanted at once.
_UNHURRIED = frozenset({"step", "ranks"})
_SHORTEST_PAUSE_S = 0.1
_RETRY_PAUSE_S = 5.0
# About 12 MiB of steps: what is kept in memory while the disk takes nothing.
_MOST_WAITING = 50_000
_READ_AT_ONCE_BYTES = 4 << 20
# No event is nearly as long; a file without line ends must not be taken into memory.
_LONGEST_LINE_BYTES = 8 << 20
_HEAD_BYTES = 96  # of the first event, with its time


class EventLog:
    """Appends events to a file at most ten times a second; a disk that fails delays them but never raises."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._lost = 0
        self._file: int | None = None
        self._has_written = False
        self._has_warned = False
        self._retry_at = 0.0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_regularly, name="events", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    @property
    def waiting(self) -> int:
        """Events that are not on the disk yet."""
        with self._lock:
            return len(self._lines)

    def write(self, type: str, **fields: object) -> None:
        """Add one event; a float that is not finite becomes null, which JSON has a word for."""
        event = {"v": PROTOCOL_VERSION, "t": round(time.time(), 3), "type": type, **fields}
        text = json.dumps(_clean(event), ensure_ascii=False, separators=(",", ":"), default=str)
        # The name of a file need not be UTF-8; what stands for its other bytes can only be written as \udcxx.
        line = text.encode(errors="backslashreplace") + b"\n"
        with self._lock:
            if type in _UNHURRIED and len(self._lines) >= _MOST_WAITING:
                self._lost += 1
                return
            self._lines.append(line)
            if type not in _UNHURRIED or self._closing.is_set():
                self._write_out()
        self._wake.set()

    def flush(self) -> None:
        """Write everything that waits, now."""
        with self._lock:
            self._retry_at = 0.0
            self._write_out()

    def close(self) -> None:
        """Write everything that waits and let go of the file; may be called twice."""
        self._closing.set()
        self._wake.set()
        if self._writer is not threading.current_thread():
            self._writer.join()
        self.flush()
        with self._lock:
            self._let_go()
        atexit.unregister(self.close)

    def _write_regularly(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                self._write_out()
                pause_s = max(_SHORTEST_PAUSE_S, self._retry_at - time.monotonic())
                if self._lines:
                    self._wake.set()
            self._closing.wait(pause_s)

    def _write_out(self) -> None:
        """With the lock held: put the waiting lines on the disk, as far as it takes them."""
        if not self._lines or time.monotonic() < self._retry_at:
            return
        if self._lost:
            self._lines.append(_lost_warning(self._lost))
            self._lost = 0
        data = b"".join(self._lines)
        try:
            if self._file is not None and os.fstat(self._file).st_nlink == 0:
                self._let_go()  # somebody deleted it: what is written to it now would be lost
            if self._file is None:
                self._file = _open(self._path, repair=not self._has_written)
            written = os.write(self._file, data)
        except OSError as error:
            self._let_go()
            self._retry_at = time.monotonic() + _RETRY_PAUSE_S
            self._warn_once(error)
            return
        self._has_written = True
        # A disk that fills up may take half a line; the other half goes first next time.
        self._lines = [data[written:]] if written < len(data) else []

    def _let_go(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _warn_once(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        with suppress(OSError, ValueError):
            print(
                f"Warning: {self._path} cannot be written ({error.strerror or error}). Training goes on; "
                "its events are kept and written when the disk takes them again.",
                file=sys.stderr,
            )


class SilentEventLog:
    """Writes nothing: for the ranks that do not report."""

    waiting = 0

    def write(self, type: str, **fields: object) -> None:
        """Forget the event."""

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to let go of."""


class EventReader:
    """Follows a growing event file; what is not an event, and a torn last line, does no harm."""

    def __init__(self, path: Path, *, from_end: bool = False, at_once_bytes: int = _READ_AT_ONCE_BYTES) -> None:
        self._path = path
        self._at_once_bytes = at_once_bytes
        self._offset = 0
        self._head = b""
        self._is_passing_over = False  # the rest of a line that is longer than any event
        self.restarts = 0  # how often the file turned out to be another one, which is then read from its beginning
        if from_end:
            with suppress(OSError), path.open("rb") as file:
                self._notice_replacement(file)
                self._offset = os.fstat(file.fileno()).st_size

    def new(self) -> list[Event]:
        """The events since the last call, about `at_once_bytes` of them, so that a window stays quick; [] = none."""
        try:
            with self._path.open("rb") as file:
                self._notice_replacement(file)
                while lines := self._whole_lines(file):
                    if events := list(parse_events(lines)):
                        return events
        except OSError:
            pass
        return []

    def _notice_replacement(self, file: BinaryIO) -> None:
        """Begin anew where the file is shorter, or begins otherwise, than before: another run of the same name."""
        head = file.read(_HEAD_BYTES)
        if os.fstat(file.fileno()).st_size < self._offset or not head.startswith(self._head):
            self._offset, self._is_passing_over = 0, False
            self.restarts += 1
        self._head = head

    def _whole_lines(self, file: BinaryIO) -> bytes:
        """The next complete lines; b"" at the end of what is written."""
        while True:
            file.seek(self._offset)
            data = file.read(self._at_once_bytes)
            if b"\n" not in data and len(data) == self._at_once_bytes and not self._is_passing_over:
                data += file.readline(max(1, _LONGEST_LINE_BYTES - len(data)))
            whole = data[: data.rfind(b"\n") + 1]
            if self._is_passing_over:
                self._is_passing_over = not whole
                begin = whole.find(b"\n") + 1
                self._offset += len(whole) or len(data)
                if whole[begin:] or not data:
                    return whole[begin:]
            elif not whole and len(data) >= _LONGEST_LINE_BYTES:
                self._is_passing_over = True
            else:
                self._offset += len(whole)
                return whole


def read_events(path: Path) -> list[Event]:
    """All events of a file, in order; [] if there is none."""
    reader = EventReader(path)
    events: list[Event] = []
    while batch := reader.new():
        events.extend(batch)
    return events


def _open(path: Path, *, repair: bool) -> int:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    size = os.fstat(file).st_size
    if repair and size:
        os.lseek(file, size - 1, os.SEEK_SET)
        # Whoever wrote here before was cut off in a line; ours must not be glued to it.
        if os.read(file, 1) != b"\n":
            os.write(file, b"\n")
    return file


def _clean(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def _lost_warning(count: int) -> bytes:
    text = f"{count} step events are missing here: the disk took nothing for too long."
    event = {"v": PROTOCOL_VERSION, "t": round(time.time(), 3), "type": "warning", "message": text}
    return json.dumps(event).encode() + b"\n"


def parse_events(data: bytes) -> Iterator[Event]:
    """The events of whole lines; what is none is passed over."""
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            yield event
