"""Writing into folders that somebody else may have prepared: links are not followed, and pipes not waited for."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def open_for_writing(path: str | Path, *, append: bool = False, create: bool = True) -> int:
    """The descriptor of a regular file, by default created if missing, emptied unless `append`; readable as well.

    Raises OSError, also for a link to another file and for what is no file, such as a named pipe.
    """
    flags = os.O_RDWR | (os.O_CREAT if create else 0) | (os.O_APPEND if append else 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):  # as far as the system has them
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "is a link to another file", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no file", str(path))
        if not append:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_fault(error: OSError, path: str | Path | None = None) -> str:
    """Why the file of the error, or `path`, cannot be written, in the system's words; of a disk that has room for bytes
    and none for another file, which the system calls full, it says so."""
    said, place = error.strerror or str(error), error.filename or path
    if error.errno != errno.ENOSPC or not isinstance(place, str | Path) or not hasattr(os, "statvfs"):
        return said
    whole = Path(place).absolute()
    with suppress(OSError, StopIteration):
        disk = os.statvfs(next(folder for folder in (whole, *whole.parents) if folder.exists()))
        if disk.f_files and not disk.f_favail:
            return f"{said}: all inodes of the disk are in use, so it takes no further file (df -i); delete some"
    return said


def remove_tree(path: Path) -> None:
    """Remove a folder with its content, or whatever else has this name; a link without what it leads to.

    What cannot be removed stays.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:  # shutil.rmtree would wait for a named pipe
        with suppress(OSError):
            path.unlink()
