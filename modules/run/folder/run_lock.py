"""File locks that allow one training at a time in a run folder; the system releases them when their process ends.

Rank 0 holds one lock while it trains; the supervisor holds another from before the ranks start. The first outlives a
supervisor that is killed, the second keeps two simultaneous starts apart.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Final

from modules.config import ResumeError
from modules.files import open_for_writing, remove_partial
from modules.run.folder.run_folder import RunFolder

_RETRY_S: Final = 0.02


@contextmanager
def training_lock(folder: RunFolder) -> Iterator[None]:
    """Hold the training lock; does nothing if the file system has no locks or another process holds it.

    Half-written files of a process that was killed are removed before.
    """
    file: IO[bytes] | None = None
    with suppress(OSError):
        file = _open(_lock_file(folder))
        _lock_with_retries(file)
        remove_half_written(folder)
    try:
        yield
    finally:
        if file is not None:
            file.close()


@contextmanager
def supervisor_lock(folder: RunFolder) -> Iterator[None]:
    """Hold the supervisor's lock; raises ResumeError if another one holds it. Needs a file system with locks."""
    try:
        # Machines that share the disk each have a supervisor.
        number = f"-{folder.machine}" if folder.machine else ""
        file = _open(folder.log_dir / f"supervisor{number}.lock")
    except OSError:
        yield  # an unwritable folder is reported elsewhere
        return
    with file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            raise _still_training(folder) from error
        except OSError:
            pass
        yield


@contextmanager
def file_lock(path: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold a lock of any name for the block; False if another process still has it after `wait_s`.

    On a file system without locks nobody is kept out. Raises OSError if the file cannot be written. Threads of one
    process are not kept apart.
    """
    deadline = time.monotonic() + wait_s
    with _open(path) as file:
        while True:
            try:
                _lock(file)
            except (BlockingIOError, PermissionError):
                if time.monotonic() < deadline:
                    time.sleep(_RETRY_S)
                    continue
                yield False
                return
            except OSError:
                pass
            break
        yield True


def check_not_training(folder: RunFolder) -> None:
    """Raise ResumeError while another process trains in the folder."""
    if is_training(folder):
        raise _still_training(folder)


def is_training(folder: RunFolder) -> bool:
    """Whether another process trains in the folder; False on a file system without locks."""
    try:
        file = _open(_lock_file(folder), create=False)
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


def training_has_ended(folder: RunFolder, *, within_s: float) -> bool:
    """Wait until nobody trains in the folder: a process that was killed holds its lock for a moment longer."""
    deadline = time.monotonic() + within_s
    while is_training(folder):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_RETRY_S)
    return True


def _still_training(folder: RunFolder) -> ResumeError:
    return ResumeError(
        f"resume: the run {folder.name!r} is still being trained by another process",
        f"Wait until it ends, or stop it after a backup: touch {folder.commands_dir / 'stop'}",
    )


def _lock_file(folder: RunFolder) -> Path:
    return folder.log_dir / "training.lock"


def _open(path: Path, *, create: bool = True) -> IO[bytes]:
    return os.fdopen(open_for_writing(path, append=True, create=create), "ab")


def _lock_with_retries(file: IO[bytes]) -> None:
    """`_lock`, retried: a process that only checks with `is_training` also holds the lock, for microseconds."""
    for pause_s in (0.02, 0.05, 0.1):
        try:
            return _lock(file)
        except (BlockingIOError, PermissionError):
            time.sleep(pause_s)
    return _lock(file)


def _lock(file: IO[bytes]) -> None:
    """Lock until the file is closed, without waiting. Raises OSError if another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        # lockf, not flock: loader workers inherit the file, and one that outlives its rank must not keep the lock.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_half_written(folder: RunFolder) -> None:
    """Leave only complete backups, weights, models and images. Call it only while nobody trains in the folder."""
    for own in (folder.model_dir, folder.model_file):  # a conversion may be writing beside them
        remove_partial(folder.path, only=escape(own.name))
    for each in (folder.backup_dir, folder.best_dir, folder.saves_dir, folder.samples_dir):
        remove_partial(each)
