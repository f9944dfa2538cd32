"""One training at a time in a run folder, by locks that the system lets go when their process ends.

Rank 0 holds one while it trains, and whoever starts and watches over the ranks another from before they begin: the
first outlives a supervisor that is killed, the second keeps two starts of the same second apart.
"""

from __future__ import annotations

import sys
import time
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
        _lock_patiently(file)
    try:
        yield
    finally:
        if file is not None:
            file.close()


@contextmanager
def supervising_in(folder: RunFolder) -> Iterator[None]:
    """Hold the supervisor's lock; raises ResumeError where another one has it. A disk without locks gives none."""
    try:
        # Machines that share the disk have a supervisor each.
        number = f"-{folder.machine}" if folder.machine else ""
        file = (folder.log_dir / f"supervisor{number}.lock").open("ab")
    except OSError:
        yield  # a folder that cannot be written is told elsewhere
        return
    with file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            raise _still_trained(folder) from error
        except OSError:
            pass
        yield


def check_not_training(folder: RunFolder) -> None:
    """Raise ResumeError while another process trains in the folder."""
    if is_training(folder):
        raise ResumeError(
            f"resume: the run {folder.name!r} is still being trained by another process",
            f"Wait for its end, or end it after a backup: touch {folder.commands_dir / 'stop'}",
        )


def is_training(folder: RunFolder) -> bool:
    """Whether another process trains in the folder; False where it never trained, or on a disk without locks."""
    try:
        file = _lock_file(folder).open("r+b")
    except OSError:
        return False
    with file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
    return False


def _still_trained(folder: RunFolder) -> ResumeError:
    return ResumeError(
        f"resume: the run {folder.name!r} is still being trained by another process",
        f"Wait for its end, or end it after a backup: touch {folder.commands_dir / 'stop'}",
    )


def _lock_file(folder: RunFolder) -> Path:
    return folder.log_dir / "training.lock"


def _lock_patiently(file: IO[bytes]) -> None:
    """As `_lock`; whoever only asks with `is_training` has the lock too, for microseconds."""
    for pause_s in (0.02, 0.05, 0.1):
        try:
            return _lock(file)
        except (BlockingIOError, PermissionError):
            time.sleep(pause_s)
    return _lock(file)


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
