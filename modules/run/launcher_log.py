"""Reads what torchrun wrote: which worker ended how, and the last error anybody printed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# Only these know torchrun's wording (2.13); without a match every reader still works, just less precisely.
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_ENDS_THE_OTHERS = re.compile(r"Sending process \d+ closing signal")
_WAS_SIGNALLED = "death signal, shutting down workers"
_ENTRY = re.compile(
    r"^\s*time\s+: (?P<time>\S+)\s*\n"
    r"\s*host\s+: (?P<host>\S+)\s*\n"
    r"\s*rank\s+: (?P<rank>\d+) .*\n"
    r"\s*exitcode\s+: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
    re.MULTILINE,
)
_ROOT_TITLE = "Root Cause (first observed failure)"
_ERROR_LINE = re.compile(r"^(?:\[rank(?P<rank>\d+)\]: *)?(?P<error>[A-Za-z_][\w.]*(?:Error|Exception)(?:: .*)?)$")
# What C++ says of an exception that nobody caught, before the process aborts.
_NATIVE_ERROR = re.compile(r"^\s*what\(\):\s+(.+)$", re.MULTILINE)
_LAUNCHERS_OWN_ERRORS = ("ChildFailedError", "SignalException")


@dataclass(frozen=True)
class WorkerExit:
    """One worker's end as torchrun saw it; a negative exit code is a signal, `time` is in whole seconds."""

    rank: int
    exit_code: int
    pid: int
    host: str = ""
    time: float = 0.0
    is_first: bool = False


@dataclass(frozen=True)
class LauncherReport:
    """The exits of failed workers, the first one first, and the error lines by rank (-1: rank not said)."""

    exits: tuple[WorkerExit, ...] = ()
    error_lines: tuple[tuple[int, str], ...] = ()
    native_error: str = ""

    def error_line(self, rank: int) -> str:
        """The last error this rank printed, else the last that names no rank, else an empty text."""
        by_rank = dict(self.error_lines)
        return by_rank.get(rank, by_rank.get(-1, ""))


class LauncherLogFile:
    """log/launcher.txt, of which only the part of the present start counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = self._seen = 0

    def open(self, first_line: str) -> BinaryIO:
        """Begin a new part with a line that says what is started; raises OSError."""
        log = self._path.open("ab")
        self._start = self._seen = log.tell()
        log.write(f"{first_line}\n".encode())
        log.flush()
        return log

    def begin_anew(self) -> None:
        """What was written so far was of a start that has failed."""
        self._start += len(self._bytes(self._start))
        self._seen = self._start

    def text(self) -> str:
        """All of this start."""
        return self._bytes(self._start).decode(errors="replace")

    def shows_failure(self) -> bool:
        """Whether torchrun said, since the last look, that a rank failed."""
        news = self._bytes(self._seen)
        whole_lines = news[: news.rfind(b"\n") + 1]
        self._seen += len(whole_lines)
        return shows_failure(whole_lines.decode(errors="replace"))

    def _bytes(self, start: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                return file.read()
        except OSError:
            return b""


def parse_launcher_log(text: str, first_rank: int = 0) -> LauncherReport:
    """Read one start's part of log/launcher.txt; `first_rank` is the node's first."""
    exits = _exits_of_report(text) or _exits_of_signs(text, first_rank)
    native = _NATIVE_ERROR.search(text)
    by_order = tuple(sorted(exits, key=lambda each: not each.is_first))
    return LauncherReport(by_order, _error_lines(text), native[1] if native else "")


def shows_failure(text: str) -> bool:
    """Whether torchrun, in this part of its running comment, reacts to a rank that failed."""
    # It names the failed rank only after the others have ended, which takes up to 30 s if they are stuck.
    reacts = _FAILED.search(text) or _ENDS_THE_OTHERS.search(text)
    return reacts is not None and _WAS_SIGNALLED not in text


def _exits_of_report(text: str) -> list[WorkerExit]:
    root_at = text.find(_ROOT_TITLE)
    return [
        WorkerExit(
            rank=int(entry["rank"]),
            exit_code=int(entry["code"]),
            pid=int(entry["pid"]),
            host=entry["host"],
            time=_seconds(entry["time"]),
            is_first=0 <= root_at < entry.start(),
        )
        for entry in _ENTRY.finditer(text)
    ]


def _exits_of_signs(text: str, first_rank: int) -> list[WorkerExit]:
    """From torchrun's running comment, which is all there is when it was ended before its report."""
    return [
        WorkerExit(rank=first_rank + int(local_rank), exit_code=int(code), pid=int(pid), is_first=True)
        for code, local_rank, pid in _FAILED.findall(text)
    ]


def _error_lines(text: str) -> tuple[tuple[int, str], ...]:
    found = []
    for line in text.splitlines():
        match = _ERROR_LINE.match(line)
        if match and not match["error"].split(":")[0].endswith(_LAUNCHERS_OWN_ERRORS):
            found.append((int(match["rank"] or -1), match["error"]))
    return tuple(found)


def _seconds(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d_%H:%M:%S"))
    except ValueError:
        return 0.0
