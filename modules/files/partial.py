"""Files and folders that are being written, or replaced: their names, and what a process that was killed leaves."""

from __future__ import annotations

import os
from contextlib import suppress
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


def remove_partial(folder: Path) -> None:
    """Remove what is only partly written in `folder`, and put back what was to be replaced by it.

    For a folder in which nobody writes any more; what belongs to another process that is alive stays.
    """
    if is_link(folder):
        return
    with suppress(OSError):
        put_back_replaced(folder)
        for each in folder.glob(f"{PARTIAL}*"):
            if not (each.name.startswith(REPLACED) or _is_of_living(each.name)):
                remove_tree(each)
        for prefix in (REPLACED, REPLACED_MODEL):
            for replaced in folder.glob(f"{prefix}*"):
                if os.path.lexists(folder / replaced.name.removeprefix(prefix)):
                    remove_tree(replaced)


def _is_of_living(name: str) -> bool:
    pid = name.split("-")[1]
    return pid.isdecimal() and psutil.pid_exists(int(pid))
