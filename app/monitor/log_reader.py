"""Reads the logs of a run in a thread: the end of what is there, then what comes; a flood is passed over, not kept."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from app.invitation import CONSOLE_FILE
from modules.run import RunFolder

Level = Literal["info", "warning", "error"]

MOST_LINES: Final = 50_000
_FIRST_BYTES: Final = 2 << 20
_AT_ONCE_BYTES: Final = 1 << 20
_LONGEST_LINE: Final = 2000
_LOOK_EVERY_S: Final = 0.4
_MOST_FILES: Final = 600

CONSOLE: Final = "console"
LAUNCHER: Final = "launcher"

_RANK_LINE: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) rank (\d+) (?:(DEBUG|INFO|WARNING|ERROR|CRITICAL) )?")
_SIGNS: Final = (
    ("error", re.compile(r"error|traceback|exception|fatal", re.I)),
    ("warning", re.compile(r"warn", re.I)),
)
_LEVELS: Final[dict[str, Level]] = {
    "DEBUG": "info", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error",
}  # fmt: skip


@dataclass(frozen=True)
class LogLine:
    """One line; `source` is "console", "launcher" or the number of a rank."""

    source: str
    level: Level
    text: str
    stamp: str = ""


class LogReader:
    """`lines` only grows at its end, until the oldest are dropped and `dropped` grows."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.lock = threading.Lock()
        self.lines: list[LogLine] = []
        self.dropped = 0
        self.skipped_bytes = 0
        self.sources: tuple[str, ...] = ()
        self.is_caught_up = threading.Event()
        self._files: dict[str, _Tail] = {}
        self._ending = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="log", daemon=True)
        self._thread.start()

    def awaken(self, awake: bool) -> None:
        """Read only while somebody looks."""
        (self._awake.set if awake else self._awake.clear)()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._awake.set()

    def _follow(self) -> None:
        while True:
            self._awake.wait()
            if self._ending.is_set():
                return
            self.look()
            self.is_caught_up.set()
            self._ending.wait(_LOOK_EVERY_S)

    def look(self) -> None:
        """Take in what is new in all logs."""
        is_first = not self._files
        new: list[LogLine] = []
        for source, path in _log_files(self._folder):
            tail = self._files.setdefault(source, _Tail(path, source))
            new.extend(tail.new())
            self.skipped_bytes += tail.take_skipped()
        if is_first:  # then all logs are read one after the other; lines without a time stay behind the one before
            new.sort(key=lambda line: line.stamp)
        with self.lock:
            self.sources = tuple(self._files)
            self.lines.extend(new)
            surplus = len(self.lines) - MOST_LINES
            if surplus > MOST_LINES // 10 or (surplus > 0 and is_first):
                del self.lines[:surplus]
                self.dropped += surplus


class _Tail:
    """The end of one log file, and what is added to it."""

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source
        self._offset: int | None = None
        self._rest = b""
        self._level: Level = "info"
        self._stamp = ""
        self._skipped = 0

    def take_skipped(self) -> int:
        """How many bytes were passed over since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def new(self) -> list[LogLine]:
        """The lines that came since the last call, the last ones if there are too many."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                room = _FIRST_BYTES if self._offset is None else _AT_ONCE_BYTES
                begin = self._offset or 0
                if size < begin:  # begun anew
                    begin, self._rest = 0, b""
                if size - begin > room:
                    self._skipped += size - room - begin if self._offset is not None else 0
                    begin, self._rest = size - room, b""
                file.seek(begin)
                data = self._rest + file.read(room)
                self._offset = file.tell()
        except OSError:
            return []
        whole, end, rest = data.rpartition(b"\n")
        self._rest = rest[-_AT_ONCE_BYTES:]
        return [self._line(line) for line in whole.splitlines()] if end else []

    def _line(self, raw: bytes) -> LogLine:
        # What rewrites its line with \r shows only its last state.
        words = raw.rsplit(b"\r", 1)[-1][: _LONGEST_LINE * 4].decode(errors="replace").replace("\t", "    ")
        text = words[:_LONGEST_LINE]
        found = _RANK_LINE.match(text)
        if found is None:
            level = next((name for name, sign in _SIGNS if sign.search(text)), "info")
            return LogLine(self._source, level, text, self._stamp)  # type: ignore[arg-type]
        self._stamp = found[1]
        if found[3]:
            self._level = _LEVELS[found[3]]
        elif text[found.end() :].startswith("Traceback"):
            self._level = "error"
        return LogLine(found[2], self._level, text, self._stamp)


def _log_files(folder: RunFolder) -> list[tuple[str, Path]]:
    """The logs there are by source: what the launcher printed, what torchrun said, and each rank."""
    found = [(CONSOLE, folder.log_dir / CONSOLE_FILE), (LAUNCHER, folder.launcher_log)]
    try:
        ranks = sorted(
            (int(path.stem.removeprefix("rank-")), path)
            for path in folder.log_dir.glob("rank-*.txt")
            if path.stem.removeprefix("rank-").isdecimal()
        )
    except OSError:
        ranks = []
    return [(name, path) for name, path in found if path.exists()] + [
        (str(rank), path) for rank, path in ranks[:_MOST_FILES]
    ]
