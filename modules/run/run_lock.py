"""One training at a time in a run folder: rank 0 holds a lock that the system lets go when its process ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from modules.config import ResumeError
from modules.run.run_folder import RunFolder


@contextmanager
def training_in(folder: RunFolder) -> Iterator[None]:
    """Hold the run's lock; where the disk knows no locks, or somebody else has it, nothing happens."""
    file: IO[bytes] | None = None
    with suppress(OSError):
        file = _lock_file(folder).open("ab")
        _lock(file)
    try:
        yield
    finally:
        if file is not None:
            file.close()


def check_not_training(folder: RunFolder) -> None:
    """Raise ResumeError while another process trains in the folder."""
    try:
        file = _lock_file(folder).open("r+b")
    except OSError:
        return  # never trained, or not writable, which is told elsewhere
    with file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            raise ResumeError(
                f"resume: the run {folder.name!r} is still being trained by another process",
                f"Wait for its end, or end it after a backup: touch {folder.commands_dir / 'stop'}",
            ) from error
        except OSError:
            return  # a disk without locks


def _lock_file(folder: RunFolder) -> Path:
    return folder.log_dir / "training.lock"


def _lock(file: IO[bytes]) -> None:
    """Lock without waiting, until the file is closed; OSError where another process has it."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        # lockf and not flock: loader workers inherit the file, and one that outlives its rank must not keep the lock.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
