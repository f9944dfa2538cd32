"""Files in a run's model folder that the run has not written, such as a converted LoRA: they stay when it saves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from modules.files import is_link


def files_in(folder: Path) -> list[str]:
    """The files of a folder and its subfolders, as sorted paths relative to it, with "/"."""
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if is_link(each) or each.is_file())


def keep_foreign_files(old: Path, new: Path, written: Collection[str] | None) -> None:
    """Give `new` the files of `old` that are neither in it nor among those that Tandem has `written` into `old`.

    Without a list of what was written, only names are kept of which `new` has nothing at the top. They are hard links
    where the disk has these, otherwise copies, so `old` stays complete until it is replaced. Raises OSError.
    """
    if is_link(old) or not old.is_dir():
        return  # what a link leads to is not replaced
    names = files_in(new)
    if written is None:
        tops = {name.partition("/")[0] for name in names}
        foreign = [name for name in files_in(old) if name.partition("/")[0] not in tops]
    else:
        foreign = sorted({*files_in(old)} - {*names} - {*written})
    for name in foreign:
        source, target = old / name, new / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target, follow_symlinks=False)
        except (OSError, NotImplementedError):
            shutil.copy2(source, target, follow_symlinks=False)
