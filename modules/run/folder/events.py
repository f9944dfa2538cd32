"""events.jsonl: the event log of a run, one JSON object per line, read by the window, the command line and people."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from modules.files import MASK, is_secret_name, mask_secrets, open_for_writing, write_fault

PROTOCOL_VERSION: Final = 1
Event = dict[str, object]

# These are buffered; all other events are rare and written at once.
_BUFFERED = frozenset({"step", "ranks"})
_MIN_PAUSE_S = 0.1
_RETRY_PAUSE_S = 5.0
# About 12 MiB of step events, kept in memory while the disk accepts no writes.
_MAX_PENDING = 50_000


class EventPlace:
    """The place of an event that another thread writes a little later; what follows it waits in memory until then."""

    def __init__(self) -> None:
        self.time = time.time()
        self.line: bytes | None = None


class EventLog:
    """Appends events to a file at most ten times a second; a failing disk delays them but never raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._lines: list[bytes | EventPlace] = []
        self._lost = 0
        self._file: int | None = None
        self._has_written = False
        self._has_warned = False
        self._retry_at = 0.0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_periodically, name="events", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    def reserve(self) -> EventPlace:
        """The place of the next event, which `write_at` then has to write."""
        place = EventPlace()
        with self._lock:
            self._lines.append(place)
        return place

    def write(self, type: str, **fields: object) -> None:
        """Append one event; a non-finite float becomes null, as JSON has no NaN or infinity. Passwords are masked."""
        self.write_at(None, type, **fields)

    def write_at(self, place: EventPlace | None, type: str, **fields: object) -> None:
        """Write one event in the `place` that is reserved for it; None: at the end."""
        at = time.time() if place is None else place.time
        event = {"v": PROTOCOL_VERSION, "t": round(at, 3), "type": type, **_clean_fields(fields)}
        # A file name need not be valid UTF-8; its undecodable bytes can only be written as \udcxx.
        line = _ENCODER.encode(event).encode(errors="backslashreplace") + b"\n"
        with self._lock:
            if type in _BUFFERED and len(self._lines) >= _MAX_PENDING:
                self._lost += 1
                return
            if place is None:
                self._lines.append(line)
            else:
                place.line = line
            if type not in _BUFFERED or self._closing.is_set():
                self._write_pending()
        self._wake.set()

    def flush(self) -> None:
        """Write all pending events now."""
        with self._lock:
            self._retry_at = 0.0
            self._write_pending()

    def sync(self) -> None:
        """Let what is written survive a loss of power. Waits for the disk; other threads may write meanwhile."""
        with self._lock:
            file = None if self._file is None else os.dup(self._file)
        if file is not None:
            try:
                with suppress(OSError):
                    os.fsync(file)
            finally:
                os.close(file)

    def close(self) -> None:
        """Write all pending events and close the file; may be called twice. A place without an event stays empty."""
        self._closing.set()
        self._wake.set()
        if self._writer is not threading.current_thread():
            self._writer.join()
        with self._lock:
            self._lines = [line for line in map(_line_of, self._lines) if line is not None]
        self.flush()
        with self._lock:
            self._close_file()
        atexit.unregister(self.close)

    def _write_periodically(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                self._write_pending()
                pause_s = max(_MIN_PAUSE_S, self._retry_at - time.monotonic())
                if self._lines:
                    self._wake.set()
            self._closing.wait(pause_s)

    def _write_pending(self) -> None:
        """Write the pending lines up to an empty place, as far as the disk accepts them; requires the lock."""
        if not self._lines or time.monotonic() < self._retry_at:
            return
        if self._lost:
            self._lines.append(_lost_events_warning(self._lost))
            self._lost = 0
        ready = list(takewhile(lambda line: line is not None, map(_line_of, self._lines)))
        data = b"".join(filter(None, ready))
        try:
            if self._file is not None and not _is_at(self.path, self._file):
                self._close_file()  # deleted or moved: whoever follows the run would not see what is written to it
            if self._file is None:
                self._file = _open(self.path, repair=not self._has_written)
            written = os.write(self._file, data)
        except OSError as error:
            self._close_file()
            self._retry_at = time.monotonic() + _RETRY_PAUSE_S
            self._warn_once(error)
            return
        self._has_written = True
        # A disk that fills up may accept half a line; the other half is written first next time.
        unwritten = [data[written:]] if written < len(data) else []
        self._lines = [*unwritten, *self._lines[len(ready) :]]

    def _close_file(self) -> None:
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
                f"Warning: {self.path} cannot be written ({write_fault(error, self.path)}). Training continues; "
                "its events are kept and written once the disk is writable again.",
                file=sys.stderr,
            )


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _open(path: Path, *, repair: bool) -> int:
    file = open_for_writing(path, append=True)
    size = os.fstat(file).st_size
    if repair and size:
        os.lseek(file, size - 1, os.SEEK_SET)
        # The previous writer was cut off in the middle of a line; do not append to it.
        if os.read(file, 1) != b"\n":
            os.write(file, b"\n")
    return file


def _clean(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, dict):
        return _clean_fields(value)
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def _clean_fields(fields: Mapping[Any, object]) -> dict[str, object]:
    named = ((*_masked_name(str(key)), item) for key, item in fields.items())
    return {name: MASK if is_secret and item else _clean(item) for name, is_secret, item in named}


@lru_cache(maxsize=512)
def _masked_name(name: str) -> tuple[str, bool]:
    """A name without passwords, and whether its value is one; the same few names come with every step."""
    return mask_secrets(name), is_secret_name(name)


def _line_of(line: bytes | EventPlace) -> bytes | None:
    """The line; None of a place whose event is still to be written."""
    return line.line if isinstance(line, EventPlace) else line


def _as_text(value: object) -> str:
    return mask_secrets(str(value))


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_as_text)


def _lost_events_warning(count: int) -> bytes:
    text = f"{count} step events are missing here: the disk was not writable for too long."
    event = {"v": PROTOCOL_VERSION, "t": round(time.time(), 3), "type": "warning", "message": text}
    return json.dumps(event).encode() + b"\n"
