"""Parses torchrun's log: how each worker ended, and the last error that was printed."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modules.files import FileFault, open_for_writing, open_regular

# All that depends on torchrun's wording (2.13); without a match the diagnosis is only less precise.
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_STOPS_OTHERS = re.compile(r"Sending process \d+ closing signal")
_WAS_SIGNALLED = "death signal, shutting down workers"
_ENDED_BY_SIGNAL = re.compile(r"^\S*SignalException: Process \d+ got signal: (\d+)$", re.MULTILINE)
_ENTRY = re.compile(
    r"^\s*time\s+: (?P<time>\S+)\s*\n"
    r"\s*host\s+: (?P<host>\S+)\s*\n"
    r"\s*rank\s+: (?P<rank>\d+) .*\n"
    r"\s*exitcode\s+: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
    re.MULTILINE,
)
_ROOT_TITLE = "Root Cause (first observed failure)"
_ERROR_LINE = re.compile(r"^(?:\[rank(?P<rank>\d+)\]: *)?(?P<error>[A-Za-z_][\w.]*(?:Error|Exception)(?:: .*)?)$")
# Printed by C++ for an uncaught exception, before the process aborts.
_NATIVE_ERROR = re.compile(r"^\s*what\(\):\s+(.+)$", re.MULTILINE)
_TORCHRUN_ERRORS = ("ChildFailedError", "SignalException")


@dataclass(frozen=True)
class WorkerExit:
    """How one worker ended according to torchrun; a negative exit code is a signal, `time` is in whole seconds."""

    rank: int
    exit_code: int
    pid: int
    host: str = ""
    time: float = 0.0
    is_first: bool = False


@dataclass(frozen=True)
class LauncherReport:
    """The exits of failed workers, first failure first, and error lines by rank (-1: unknown rank).

    `signal` is the number of one that torchrun itself got, passed on to its workers and ended of; 0 without one.
    """

    exits: tuple[WorkerExit, ...] = ()
    error_lines: tuple[tuple[int, str], ...] = ()
    native_error: str = ""
    signal: int = 0

    def error_line(self, rank: int) -> str:
        """The last error this rank printed, else the last without a rank, else an empty string."""
        by_rank = dict(self.error_lines)
        return by_rank.get(rank, by_rank.get(-1, ""))


class LauncherLogFile:
    """log/launcher.txt; only the part written since the current start counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = self._read_to = 0

    def open(self, first_line: str) -> BinaryIO:
        """Start a new part, headed by `first_line`; raises OSError."""
        log = os.fdopen(open_for_writing(self._path, append=True), "ab")
        self._start = self._read_to = log.tell()
        log.write(f"{first_line}\n".encode())
        log.flush()
        return log

    def start_new_attempt(self) -> None:
        """Ignore what was written so far: it belongs to a failed attempt."""
        self._start += len(self._read_from(self._start))
        self._read_to = self._start

    def text(self) -> str:
        """Everything written since the current start."""
        return self._read_from(self._start).decode(errors="replace")

    def shows_failure(self) -> bool:
        """Whether torchrun has reported a failed rank since the last call."""
        new = self._read_from(self._read_to)
        whole_lines = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole_lines)
        return shows_failure(whole_lines.decode(errors="replace"))

    def _read_from(self, start: int) -> bytes:
        try:
            with open_regular(self._path) as file:
                file.seek(start)
                return file.read()
        except (OSError, FileFault):
            return b""


def parse_launcher_log(text: str, first_rank: int = 0) -> LauncherReport:
    """Parse the part of log/launcher.txt of one start; `first_rank` is the first rank of this node."""
    exits = _exits_from_report(text) or _exits_from_log_lines(text, first_rank)
    native = _NATIVE_ERROR.search(text)
    signal = _ENDED_BY_SIGNAL.search(text)
    by_order = tuple(sorted(exits, key=lambda each: not each.is_first))
    return LauncherReport(by_order, _error_lines(text), native[1] if native else "", int(signal[1]) if signal else 0)


def shows_failure(text: str) -> bool:
    """Whether torchrun, in this part of its log, reacts to a failed rank."""
    # It names the failed rank only after the others have ended, which takes up to 30 s if they hang.
    reacts = _FAILED.search(text) or _STOPS_OTHERS.search(text)
    return reacts is not None and _WAS_SIGNALLED not in text


def _exits_from_report(text: str) -> list[WorkerExit]:
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


def _exits_from_log_lines(text: str, first_rank: int) -> list[WorkerExit]:
    """From torchrun's log lines, which are all there is if it was killed before its report."""
    return [
        WorkerExit(rank=first_rank + int(local_rank), exit_code=int(code), pid=int(pid), is_first=True)
        for code, local_rank, pid in _FAILED.findall(text)
    ]


def _error_lines(text: str) -> tuple[tuple[int, str], ...]:
    found = []
    for line in text.splitlines():
        match = _ERROR_LINE.match(line)
        if match and not match["error"].split(":")[0].endswith(_TORCHRUN_ERRORS):
            found.append((int(match["rank"] or -1), match["error"]))
    return tuple(found)


def _seconds(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d_%H:%M:%S"))
    except ValueError:
        return 0.0
