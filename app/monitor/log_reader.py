"""Tails the logs of a run in a thread, from their last lines on; when too much arrives at once, lines are skipped."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from modules.files import FileFault, open_regular, printable
from modules.run import RunFolder
from modules.run.hosts.remote_machines import host_log, hosts_of_former_run

Level = Literal["info", "warning", "error"]

MAX_LINES: Final = 50_000
_INITIAL_BYTES: Final = 2 << 20
_MAX_READ_BYTES: Final = 1 << 20
_ALL_BYTES: Final = 32 << 20  # of all files at once, though at least _LEAST_BYTES of each
_LEAST_BYTES: Final = 64 << 10
_BYTES_PER_LINE: Final = 64  # of shorter ones the last are kept: time, rank and level of one take half of that
_MAX_LINE_LENGTH: Final = 2000
_POLL_S: Final = 0.4
_MAX_FILES: Final = 600
_REMEMBERED: Final = 20_000  # lines of the ranks

CONSOLE: Final = "console"
LAUNCHER: Final = "launcher"
HOST: Final = "host-"  # before the name of a machine that the run has started over ssh

_CLOCK: Final = "%Y-%m-%d %H:%M:%S"
_STARTED: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ")  # before the command of each start
RANK_LINE: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) rank (\d+) (?:(DEBUG|INFO|WARNING|ERROR|CRITICAL) )?")
_LEVEL_PATTERNS: Final = (
    ("error", re.compile(r"error|traceback|exception|fatal", re.I)),
    ("warning", re.compile(r"warn", re.I)),
)
_LEVELS: Final[dict[str, Level]] = {
    "DEBUG": "info", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error",
}  # fmt: skip


@dataclass(frozen=True)
class LogLine:
    """One line; `source` is "console", "launcher", a rank, or "host-NAME". `is_repeat`: the log of a rank has it, too.

    `place`: among the lines of its second, in the order of reading; on the console that of the last repeat.
    """

    source: str
    level: Level
    text: str
    stamp: str = ""
    is_repeat: bool = False
    place: int = 0


class LogReader:
    """`lines` grows at its end; when the oldest are removed, `dropped` counts them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.lock = threading.Lock()
        self.lines: list[LogLine] = []
        self.dropped = 0
        self.skipped_bytes = 0
        self.sources: tuple[str, ...] = ()
        self.is_caught_up = threading.Event()
        self._files: dict[str, _Tail] = {}
        self._held: list[LogLine] = []
        self._written: dict[str, LogLine] = {}  # what the ranks have, the newest last
        self._count = 0
        self._before = LogLine(CONSOLE, "info", "")  # the next line of the console: what it repeats, or its start
        self._closing = threading.Event()
        self._active = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="log", daemon=True)
        self._thread.start()

    def set_active(self, active: bool) -> None:
        """Read only while the page is visible."""
        (self._active.set if active else self._active.clear)()

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        self._active.set()

    def _follow(self) -> None:
        while True:
            self._active.wait()
            if self._closing.is_set():
                return
            self.poll()
            self.is_caught_up.set()
            self._closing.wait(_POLL_S)

    def poll(self) -> None:
        """Read new lines from all logs."""
        is_first = not self._files
        new: list[LogLine] = []
        found = _log_files(self._folder)
        share = max(_LEAST_BYTES, _ALL_BYTES // max(1, len(found)))
        for source, path in found:
            tail = self._files.setdefault(source, _Tail(path, source))
            new.extend(tail.read(share))
            self.skipped_bytes += tail.take_skipped()
        ready = self._in_order(self._matched(new), is_first=is_first)
        with self.lock:
            self.sources = tuple(self._files)
            self.lines.extend(ready)
            surplus = len(self.lines) - MAX_LINES
            if surplus > MAX_LINES // 10 or (surplus > 0 and is_first):
                del self.lines[:surplus]
                self.dropped += surplus

    def _matched(self, new: list[LogLine]) -> list[LogLine]:
        """The lines, those of the console with the time of the same ones in the ranks' logs, marked as repeats."""
        placed = [replace(line, place=self._count + place) for place, line in enumerate(new, 1)]
        self._count += len(new)
        self._written.update({_message(line): line for line in placed if line.source.isdecimal()})
        while len(self._written) > _REMEMBERED:
            del self._written[next(iter(self._written))]
        started = [line for line in placed if line.source == LAUNCHER and _STARTED.match(line.text)]
        self._before = max([self._before, *started[-1:]], key=lambda line: line.stamp)
        return [self._of_console(line) if line.source == CONSOLE else line for line in placed]

    def _of_console(self, line: LogLine) -> LogLine:
        same = self._written.get(_message(line))
        if same is not None and same.stamp >= self._before.stamp:
            self._before = same
        after, is_repeat = self._before, same is not None and bool(line.text.strip())
        return replace(line, stamp=after.stamp, place=after.place, is_repeat=is_repeat)

    def _in_order(self, new: list[LogLine], *, is_first: bool) -> list[LogLine]:
        """The lines to show now, by time; those without a time keep their place after the one before.

        Lines wait for one poll, in which an earlier one of another rank may arrive.
        """
        latest = max((line.stamp for line in self._held), default="")
        pool = sorted([*self._held, *new], key=lambda line: (line.stamp, line.place, line.source == CONSOLE))
        due = len(pool) if is_first else sum(bool(self._held) and line.stamp <= latest for line in pool)
        self._held = pool[due:]
        return pool[:due]


class _Tail:
    """Reads the end of one log file and whatever is appended."""

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source
        self._offset: int | None = None
        self._partial = b""
        self._level: Level = "info"
        self._stamp = ""
        self._skipped = 0

    def take_skipped(self) -> int:
        """Number of bytes skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def read(self, most_bytes: int) -> list[LogLine]:
        """Lines appended since the last call; only the last ones if there are too many."""
        try:
            with open_regular(self._path) as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                limit = min(most_bytes, _INITIAL_BYTES if self._offset is None else _MAX_READ_BYTES)
                start = self._offset or 0
                if size < start:  # truncated
                    start, self._partial = 0, b""
                if size - start > limit:
                    self._skipped += size - limit - start if self._offset is not None else 0
                    start, self._partial = size - limit, b""
                file.seek(start)
                data = self._partial + file.read(limit)
                self._offset = file.tell()
        except (OSError, FileFault):
            return []
        if self._source.startswith(HOST):  # whose lines have no times
            self._stamp = time.strftime(_CLOCK, time.localtime(status.st_mtime))
        complete, end, rest = data.rpartition(b"\n")
        self._partial = rest[-_LEAST_BYTES:]
        return [self._line(line) for line in complete.splitlines()[-(limit // _BYTES_PER_LINE) :]] if end else []

    def _line(self, raw: bytes) -> LogLine:
        # A line rewritten with \r shows only its last state.
        decoded = raw.rsplit(b"\r", 1)[-1][: _MAX_LINE_LENGTH * 4].decode(errors="replace").replace("\t", "    ")
        text = printable(decoded, _MAX_LINE_LENGTH)
        if self._source == LAUNCHER and (started := _STARTED.match(text)):
            self._stamp = started[1]
        found = RANK_LINE.match(text)
        if found is None:
            level = next((name for name, pattern in _LEVEL_PATTERNS if pattern.search(text)), "info")
            return LogLine(self._source, level, text, self._stamp)  # type: ignore[arg-type]
        self._stamp = found[1]
        if found[3]:
            self._level = _LEVELS[found[3]]
        elif text[found.end() :].startswith("Traceback"):
            self._level = "error"
        return LogLine(found[2], self._level, text, self._stamp)


def _message(line: LogLine) -> str:
    """What a line says, without the time, rank, level and logger before it."""
    text = line.text
    if found := RANK_LINE.match(text):
        text = text[found.end() :].partition(": ")[2] if found[3] else text[found.end() :]
    return text.removeprefix("Warning: ").removeprefix("Error: ").strip()


def _log_files(folder: RunFolder) -> list[tuple[str, Path]]:
    """The existing logs with their sources: console, launcher, each rank, and each machine over ssh."""
    found = [(CONSOLE, folder.console_file), (LAUNCHER, folder.launcher_log)]
    try:
        ranks = sorted(
            (int(path.stem.removeprefix("rank-")), path)
            for path in folder.log_dir.glob("rank-*.txt")
            if path.stem.removeprefix("rank-").isdecimal()
        )
    except OSError:
        ranks = []
    return [
        *((name, path) for name, path in found if os.path.exists(path)),
        *((str(rank), path) for rank, path in ranks[:_MAX_FILES]),
        *((f"{HOST}{name}", host_log(folder, name)) for name in hosts_of_former_run(folder)[:_MAX_FILES]),
    ]
