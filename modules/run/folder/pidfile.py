"""log/launcher.json: the process that supervises a run, so that a window opened later can find and stop it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field

from modules.files import FileFault, Record, open_for_writing, read_json, validate_record
from modules.machine import process_start, system_hostname
from modules.run.folder.run_folder import RunFolder

# psutil derives a start time from clock ticks since boot, and may round it differently next time.
_SAME_START_S = 2.0
_PROGRAM_SET_UP_WITHIN_S = 1.0


@dataclass(frozen=True)
class Launcher:
    """The process that supervises a run, and when its pidfile was written (seconds since 1970)."""

    process: psutil.Process
    marked_at: float


class _Mark(Record):
    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    started: float  # `process_start`
    host: str
    marked: float


@contextmanager
def pidfile_held(folder: RunFolder) -> Iterator[None]:
    """Inside the block this process is recorded as the run's launcher; an unwritable folder is ignored."""
    write_pidfile(folder, os.getpid())
    with ExitStack() as held:
        with suppress(OSError):  # open as long as this process works here, which `find_launcher` looks for
            lock = open_for_writing(folder.log_dir / "launcher.lock", append=True)
            held.enter_context(os.fdopen(lock, "ab"))
        try:
            yield
        finally:
            with suppress(OSError):
                _file(folder).unlink(missing_ok=True)


def write_pidfile(folder: RunFolder, pid: int) -> None:
    """Record process `pid` of this computer, which may just have been started, as the run's launcher."""
    _await_command_line(pid)
    with suppress(OSError, psutil.Error):
        mark = {"pid": pid, "started": process_start(pid), "host": system_hostname(), "marked": time.time()}
        folder.log_dir.mkdir(parents=True, exist_ok=True)
        temporary = _file(folder).with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(mark), encoding="utf-8")
        temporary.replace(_file(folder))


def find_launcher(folder: RunFolder) -> Launcher | None:
    """The live launcher of a run on this computer; None if there is none or it runs on another computer.

    Stop sends it a signal, and the folder may come from somebody else: so the process itself has to show that it
    works in this folder, by its command line or a file that it keeps open.
    """
    try:
        mark = validate_record(_Mark, read_json(_file(folder)))
        process = psutil.Process(mark.pid)
        is_same = mark.host == system_hostname() and abs(process_start(mark.pid) - mark.started) < _SAME_START_S
        if not is_same or process.status() == psutil.STATUS_ZOMBIE or not _works_in(process, folder.path.resolve()):
            return None
        return Launcher(process, mark.marked)
    except (OSError, FileFault, psutil.Error):
        return None


def interrupted_start(folder: RunFolder) -> float:
    """When the pidfile was written that a launcher has left because it was killed; 0 if there is none."""
    try:
        return validate_record(_Mark, read_json(_file(folder))).marked
    except (OSError, FileFault):
        return 0.0


def _await_command_line(pid: int) -> None:
    """`Popen` returns while Linux still sets up the new program, whose command line is empty until then: for about a
    millisecond, longer on a busy machine, `find_launcher` would not find it."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        deadline = time.monotonic() + _PROGRAM_SET_UP_WITHIN_S
        while not process.cmdline() and time.monotonic() < deadline:
            time.sleep(0.001)


def _works_in(process: psutil.Process, folder: Path) -> bool:
    argv = process.cmdline()
    for flag, value in pairwise(argv):
        if flag in ("--start_in", "--run_folder") and Path(process.cwd(), value).resolve() == folder:
            return True
    return any(Path(opened.path).is_relative_to(folder) for opened in process.open_files())


def _file(folder: RunFolder) -> Path:
    return folder.log_dir / "launcher.json"
