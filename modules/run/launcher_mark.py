"""log/launcher.json: which process watches over a run, so that a window opened later finds it and can end it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from modules.machine import hostname
from modules.run.run_folder import RunFolder

# psutil reckons a start from the clock ticks since the system's, which it may round otherwise next time.
_SAME_START_S = 2.0


@dataclass(frozen=True)
class Launcher:
    """The process that watches over a run, and when it was marked (seconds since 1970)."""

    process: psutil.Process
    marked: float


@contextmanager
def launcher_marked(folder: RunFolder) -> Iterator[None]:
    """Inside the block this process is the run's launcher; a folder that takes nothing does no harm."""
    mark_launcher(folder, os.getpid())
    try:
        yield
    finally:
        with suppress(OSError):
            _file(folder).unlink(missing_ok=True)


def mark_launcher(folder: RunFolder, pid: int) -> None:
    """Note that the process `pid` of this computer is the run's launcher."""
    with suppress(OSError, psutil.Error):
        started = psutil.Process(pid).create_time()
        mark = {"pid": pid, "started": started, "host": hostname(), "marked": time.time()}
        folder.log_dir.mkdir(parents=True, exist_ok=True)
        temporary = _file(folder).with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(mark), encoding="utf-8")
        temporary.replace(_file(folder))


def launcher_of(folder: RunFolder) -> Launcher | None:
    """The living launcher of a run on this computer; None where there is none, or it runs elsewhere."""
    try:
        mark = json.loads(_file(folder).read_text(encoding="utf-8"))
        if mark["host"] != hostname():
            return None
        process = psutil.Process(int(mark["pid"]))
        is_same = abs(process.create_time() - float(mark["started"])) < _SAME_START_S
        is_alive = is_same and process.status() != psutil.STATUS_ZOMBIE
        return Launcher(process, float(mark["marked"])) if is_alive else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError, psutil.Error):
        return None


def _file(folder: RunFolder) -> Path:
    return folder.log_dir / "launcher.json"
