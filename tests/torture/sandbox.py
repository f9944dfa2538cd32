"""Notices what a reader does outside the folder of its case: files, processes, signals; and its memory."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from modules import ROOT

MEMORY_LIMIT = 2 << 30  # bytes beyond what the process takes before the case
_ADDRESS_SPACE = 5 << 30  # bytes beyond what the process has mapped at its start
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# audit events and the positions of the paths that they change (https://docs.python.org/3/library/audit_events.html)
_CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.chmod": (0,), "os.chown": (0,),
    "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,), "os.utime": (0,), "shutil.rmtree": (0,),
}  # fmt: skip
_IN_FOLDER = ("os.remove", "os.rmdir", "os.mkdir")  # the last argument is an open folder or -1
_NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.kill", "os.killpg", "os.startfile")


class Sandbox:
    """An audit hook, which lasts as long as the process; it looks only inside `watched`."""

    def __init__(self, case: Path, outside: Path) -> None:
        self._case, self._outside = case.resolve(), outside
        self._is_on = False
        self.escapes: list[str] = []
        sys.addaudithook(self._audit)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, `escapes` collects what happens outside the folder of the case."""
        self.escapes = []
        before = _snapshot(self._outside)
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
        if _snapshot(self._outside) != before:
            self.escapes.append(f"a file in {self._outside} was changed")

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_on:
            return
        if event == "open":
            path, _mode, flags = arguments
            # a lock is opened for writing, and never written
            is_lock = str(path).endswith(".lock") and isinstance(flags, int) and not flags & (os.O_CREAT | os.O_TRUNC)
            if isinstance(flags, int) and flags & _WRITES and not is_lock:
                self._check(event, path)
        elif event in _CHANGES:
            is_relative = event in _IN_FOLDER and arguments[-1] != -1  # shutil.rmtree, which is an event itself
            for at in () if is_relative else _CHANGES[event]:
                self._check(event, arguments[at])
        elif event in _NEVER and not _is_taggers(event, arguments):
            self.escapes.append(f"{event}{str(arguments)[:200]}")

    def _check(self, event: str, path: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # an open file, or relative to an open folder (shutil.rmtree)
        name = os.fsdecode(path)
        self._is_on = False  # realpath would come back here
        with suppress(OSError, ValueError):
            folder = os.path.realpath(os.path.dirname(name) or ".")
            is_inside = Path(folder, os.path.basename(name)).is_relative_to(self._case)
            if not is_inside and not name.startswith("/dev/"):
                self.escapes.append(f"{event} {name[:200]!r}")
        self._is_on = True


def _is_taggers(event: str, arguments: tuple[object, ...]) -> bool:
    """Whether a tagger's model gets its process, or one that this process has started is ended."""
    match event, arguments:
        case "subprocess.Popen", (_, [_, "-P", Path() as file, *_], *_):
            return file == ROOT / "modules" / "annotators" / "tagger_process.py"
        case "os.kill", (int(pid), _):
            with suppress(psutil.Error):
                return psutil.Process(pid).ppid() == os.getpid()
    return False


def limit_memory() -> None:
    """An allocation far beyond the limit raises MemoryError instead of filling the machine."""
    limit = _status("VmSize") + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def forget_peak() -> int:
    """Let `peak` count from now on; returns the memory of this process in bytes."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def peak() -> int:
    """The most memory since `forget_peak`, in bytes."""
    return _status("VmHWM")


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:"))


def _snapshot(folder: Path) -> Sequence[tuple[str, int, int, int]]:
    found = [folder, *sorted(folder.rglob("*"))]
    return [(str(path), *_stamp(path)) for path in found]


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_size, status.st_mtime_ns, status.st_mode
