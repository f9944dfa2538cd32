"""Finds links in folders that somebody else may have prepared."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

_JUNCTION = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", 0xA0000003)  # a folder of Windows that leads elsewhere


def is_link(entry: Path | os.DirEntry[str]) -> bool:
    """Whether this leads to another file or folder; what does not exist is no link."""
    if entry.is_symlink():
        return True
    if os.name != "nt":
        return False
    try:
        return getattr(os.lstat(entry), "st_reparse_tag", 0) == _JUNCTION
    except OSError:
        return False


def whole_path(path: str | Path) -> Path:
    """The absolute path without `..`: after a link, this is the folder above what the link leads to, as for the
    system, not the one above the link. Looks at the disk only if there is a `..`."""
    whole = os.path.abspath(path)
    if ".." in Path(path).parts and (real := os.path.realpath(path)) != os.path.realpath(whole):
        return Path(real)
    return Path(whole)


def expand_home(path: str | Path) -> Path:
    """The path with a home folder for `~`. One such as ~nobody stays as it is, for which Path.expanduser raises."""
    return Path(os.path.expanduser(path))


def find_link(folder: Path, except_in: Collection[str] = ()) -> Path | None:
    """A link somewhere in a folder, except in its subfolders `except_in`; None if there is none.

    The folder itself may be one. Raises OSError.
    """
    left = [folder]
    while left:
        current = left.pop()
        try:
            with os.scandir(current) as entries:
                found = list(entries)
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or never made
            continue
        for entry in found:
            if is_link(entry):
                return current / entry.name
            if entry.is_dir(follow_symlinks=False) and not (current == folder and entry.name in except_in):
                left.append(current / entry.name)
    return None
