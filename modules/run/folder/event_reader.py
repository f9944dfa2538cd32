"""Reads events.jsonl: all of it, or what is new while a run appends to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from modules.files import MAX_DEPTH, FileFault, is_deeper_than, open_regular
from modules.run.folder.events import Event

_CHUNK_BYTES = 4 << 20
# No event is nearly as long; a file without line ends must not be read into memory.
_MAX_LINE_BYTES = 8 << 20
_MAX_SKIPPED_BYTES = 64 << 20  # at once
_START_BYTES = 96  # of the first event, including its time
_HEAD_BYTES = 192 << 10
_TAIL_BYTES = 96 << 10
_MAX_TIME = 1e11  # seconds since 1970, in the year 5138; what is more, no clock can show


class EventReader:
    """Follows a growing event file; skips lines that are not events and an incomplete last line."""

    def __init__(self, path: Path, *, from_end: bool = False, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes
        self._offset = 0
        self._head = b""
        self._is_skipping = False  # inside a line that is longer than any event
        self._read_state: tuple[int, ...] = ()  # of the file when all of it had been read
        self.restarts = 0  # how often the file was replaced by another one, which is then read from its start
        if from_end:
            with suppress(OSError, FileFault), open_regular(path) as file:
                self._detect_replacement(file)
                self._offset = os.fstat(file.fileno()).st_size

    def new(self) -> list[Event]:
        """The events since the last call, about `chunk_bytes` at most, to keep a window responsive; [] if none."""
        try:
            with open_regular(self._path) as file:  # opening it is what makes NFS ask for its current size
                found = os.fstat(file.fileno())
                state = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
                if state == self._read_state:
                    return []
                self._detect_replacement(file)
                while lines := self._read_lines(file):
                    if events := list(parse_events(lines)):
                        return events
                self._read_state = () if self._is_skipping else state
        except (OSError, FileFault):
            pass
        return []

    def _detect_replacement(self, file: BinaryIO) -> None:
        """Start over if the file is shorter than before or starts differently: a new run of the same name."""
        head = file.read(_START_BYTES)
        if os.fstat(file.fileno()).st_size < self._offset or not head.startswith(self._head):
            self._offset, self._is_skipping = 0, False
            self.restarts += 1
        self._head = head

    def _read_lines(self, file: BinaryIO) -> bytes:
        """The next complete lines; b"" at the end of the file, or after much of a line that is too long."""
        first = self._offset
        while True:
            file.seek(self._offset)
            data = file.read(self._chunk_bytes)
            if b"\n" not in data and len(data) == self._chunk_bytes and not self._is_skipping:
                data += file.readline(max(1, _MAX_LINE_BYTES - len(data)))
            whole = data[: data.rfind(b"\n") + 1]
            if self._is_skipping:
                self._is_skipping = not whole
                start = whole.find(b"\n") + 1
                self._offset += len(whole) or len(data)
                if whole[start:] or not data or self._offset - first > _MAX_SKIPPED_BYTES:
                    return whole[start:]
            elif not whole and len(data) >= _MAX_LINE_BYTES:
                self._is_skipping = True
            else:
                self._offset += len(whole)
                return whole


def read_events(path: Path) -> list[Event]:
    """All events of a file, in order; [] if there is no file."""
    reader = EventReader(path)
    events: list[Event] = []
    while batch := reader.new():
        events.extend(batch)
    return events


def head_and_tail(file: Path) -> list[Event]:
    """The first and the last events of a file; none if it cannot be read."""
    try:
        with open_regular(file) as events:
            head = events.read(_HEAD_BYTES)
            end = events.seek(0, 2)
            if end <= _HEAD_BYTES:
                return list(parse_events(head))
            events.seek(max(_HEAD_BYTES, end - _TAIL_BYTES))
            tail = events.read(_TAIL_BYTES)
    except (OSError, FileFault):
        return []
    whole_head = head[: head.rfind(b"\n") + 1]
    whole_tail = tail[tail.find(b"\n") + 1 : tail.rfind(b"\n") + 1]
    return [*parse_events(whole_head), *parse_events(whole_tail)]


def event_time(event: Event) -> float:
    """When an event was written, in seconds since 1970; 0 if it does not say so, or nonsense."""
    at = event.get("t")
    return float(at) if isinstance(at, (int, float)) and 0 <= at < _MAX_TIME else 0.0


def parse_events(data: bytes) -> Iterator[Event]:
    """The events in complete lines; lines that are not events, or too deeply nested for one, are skipped."""
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            continue
        may_be_deep = line.count(b"{") + line.count(b"[") > MAX_DEPTH  # looking at each would take as long as parsing
        if not may_be_deep or not is_deeper_than(event, MAX_DEPTH):
            yield event
