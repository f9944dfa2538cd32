"""Reads what torchrun wrote: which worker ended how, and the last error anybody printed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

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

    def error_line(self, rank: int) -> str:
        """The last error this rank printed, else the last that names no rank, else an empty text."""
        by_rank = dict(self.error_lines)
        return by_rank.get(rank, by_rank.get(-1, ""))


def parse_launcher_log(text: str, first_rank: int = 0) -> LauncherReport:
    """Read one start's part of log/launcher.txt; `first_rank` is the node's first."""
    exits = _exits_of_report(text) or _exits_of_signs(text, first_rank)
    return LauncherReport(tuple(sorted(exits, key=lambda each: not each.is_first)), _error_lines(text))


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
