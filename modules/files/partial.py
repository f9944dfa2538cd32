"""Files and folders that are being written, or replaced: their names, and what a process that was killed leaves."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import psutil

from modules.files.changeable import check_changeable
from modules.files.links import is_link
from modules.files.writing import remove_tree

PARTIAL: Final = ".partial-"  # before the final name; programs that may write the same file put their PID in between
REPLACED: Final = f"{PARTIAL}former-"  # before the name of what is being replaced, until the new one has its name
REPLACED_MODEL: Final = ".former-"
_LONGEST_NAME: Final = 200  # bytes, of 255
_PIDS: Final = 1 << 31  # what is more, such as a date with a time, is none


@contextmanager
def replacing(file: Path, ending: str = "") -> Iterator[Path]:
    """The name of a file to write, which becomes `file`, in place of an older one, at the end of the block.

    With an `ending` such as ".part", programs that list files by their ending do not find it before.

    If the block fails, the older one stays. An OSError of writing names `file`, which was asked for. Raises OSError for
    what `check_replaceable` refuses.
    """
    check_replaceable(file)
    partial = file.parent / f"{PARTIAL}{os.getpid()}-{_short(file.name)}{ending}"  # a folder such as / has no name
    try:
        partial.unlink(missing_ok=True)  # in a container, a program that was killed may have had the same PID
        yield partial
        partial.replace(file)
    except OSError as error:
        if error.filename in (None, str(partial)):
            error.filename = str(file)
        raise
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def check_replaceable(file: Path) -> None:
    """Raise OSError for a file in a shard, and for a device: root's file would take the place of /dev/null, for all
    programs. So would it of the link /dev/stdout, even if that leads to a file.
    """
    check_changeable(file)
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(file).st_mode
        if os.path.abspath(file.parent) == "/dev" or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "is a device, so no file can take its place", str(file))


def _short(name: str) -> str:
    """A name as long as is allowed leaves no room for more."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST_NAME else hashlib.sha256(encoded).hexdigest()


def put_back_replaced(folder: Path, only: str = "*") -> None:
    """Rename what was being replaced in `folder` to its own name, unless the new one has that already.

    Names that do not match the pattern `only` stay: they may be somebody's own.
    """
    with suppress(OSError):
        for replaced, final in _replaced(folder, only):
            if not os.path.lexists(final):
                with suppress(OSError):  # another rank was faster, or the folder is read-only
                    replaced.rename(final)


def remove_partial(folder: Path, only: str = "*", unchanged_s: float = 0.0) -> None:
    """Remove what is only partly written in `folder`, and put back what was to be replaced by it.

    Names that do not match the pattern `only` stay, because another program may be writing them; those with a PID go
    if that process has ended. In a folder that machines share, a process may run on another one: with `unchanged_s`,
    files that were written to within this time stay.
    """
    put_back_replaced(folder, only)
    with suppress(OSError):  # a disk that fails or is gone
        if is_link(folder):
            return
        for each in folder.glob(f"{PARTIAL}*"):
            if each.name.startswith(REPLACED) or not _is_abandoned(each.name.removeprefix(PARTIAL), only):
                continue
            if not unchanged_s or time.time() - each.lstat().st_mtime > unchanged_s:
                remove_tree(each)
        for replaced, final in _replaced(folder, only):
            if os.path.lexists(final):
                remove_tree(replaced)


def _replaced(folder: Path, only: str) -> list[tuple[Path, Path]]:
    """What is being replaced in `folder`, and the names that these had. Raises OSError."""
    if is_link(folder):
        return []
    found = [(each, prefix) for prefix in (REPLACED, REPLACED_MODEL) for each in folder.glob(f"{prefix}*")]
    names = [(each, each.name.removeprefix(prefix)) for each, prefix in found]
    return [(each, folder / name) for each, name in names if fnmatchcase(name, only)]


def _is_abandoned(name: str, only: str) -> bool:
    pid = name.split("-")[0]
    is_pid = pid.isdecimal() and int(pid) < _PIDS
    return not psutil.pid_exists(int(pid)) if is_pid else fnmatchcase(name, only)
