"""log/launcher.json: the process that supervises a run, so that a window opened later can find and stop it."""

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
from modules.run.folder.run_folder import RunFolder

# psutil derives a start time from clock ticks since boot, and may round it differently next time.
_SAME_START_S = 2.0


@dataclass(frozen=True)
class Launcher:
    """The process that supervises a run, and when its pidfile was written (seconds since 1970)."""

    process: psutil.Process
    marked_at: float


@contextmanager
def pidfile_held(folder: RunFolder) -> Iterator[None]:
    """Inside the block this process is recorded as the run's launcher; an unwritable folder is ignored."""
    write_pidfile(folder, os.getpid())
    try:
        yield
    finally:
        with suppress(OSError):
            _file(folder).unlink(missing_ok=True)


def write_pidfile(folder: RunFolder, pid: int) -> None:
    """Record process `pid` of this computer as the run's launcher."""
    with suppress(OSError, psutil.Error):
        started = psutil.Process(pid).create_time()
        mark = {"pid": pid, "started": started, "host": hostname(), "marked": time.time()}
        folder.log_dir.mkdir(parents=True, exist_ok=True)
        temporary = _file(folder).with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(mark), encoding="utf-8")
        temporary.replace(_file(folder))


def find_launcher(folder: RunFolder) -> Launcher | None:
    """The live launcher of a run on this computer; None if there is none or it runs on another computer."""
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
