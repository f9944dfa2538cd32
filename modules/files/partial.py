"""Files and folders that are being written, or replaced: their names, and what a process that was killed leaves."""

from __future__ import annotations

import os
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import psutil

from modules.files.links import is_link
from modules.files.writing import remove_tree

PARTIAL: Final = ".partial-"  # before the final name; programs that may write the same file put their PID in between
REPLACED: Final = f"{PARTIAL}former-"  # before the name of what is being replaced, until the new one has its name
REPLACED_MODEL: Final = ".former-"


def put_back_replaced(folder: Path) -> None:
    """Rename what was being replaced in `folder` to its own name, unless the new one has that already."""
    if is_link(folder):
        return
    for prefix in (REPLACED, REPLACED_MODEL):
        for replaced in folder.glob(f"{prefix}*"):
            final = folder / replaced.name.removeprefix(prefix)
            if not os.path.lexists(final):
                with suppress(OSError):  # another rank was faster, or the folder is read-only
                    replaced.rename(final)


def remove_partial(folder: Path, only: str = "*") -> None:
    """Remove what is only partly written in `folder`, and put back what was to be replaced by it.

    Names that do not match the pattern `only` stay, because another program may be writing them; those with a PID go
    if that process has ended.
    """
    if is_link(folder):
        return
    with suppress(OSError):
        put_back_replaced(folder)
        for each in folder.glob(f"{PARTIAL}*"):
            if not each.name.startswith(REPLACED) and _is_abandoned(each.name.removeprefix(PARTIAL), only):
                remove_tree(each)
        for prefix in (REPLACED, REPLACED_MODEL):
            for replaced in folder.glob(f"{prefix}*"):
                if os.path.lexists(folder / replaced.name.removeprefix(prefix)):
                    remove_tree(replaced)


def _is_abandoned(name: str, only: str) -> bool:
    pid = name.split("-")[0]
    return not psutil.pid_exists(int(pid)) if pid.isdecimal() else fnmatchcase(name, only)
