"""Going back to an earlier backup of a run, or to a copy that was kept elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from modules.checkpoint.backups import Backups, sync_to_disk
from modules.config import ResumeError
from modules.files import PARTIAL, is_link, open_regular, remove_partial, remove_tree
from modules.run.folder.backup_list import list_backups
from modules.run.folder.backup_manifest import MANIFEST, find_damage, read_manifest, read_progress


def go_back_to(folder: Path, source: Path) -> Path:
    """Make `source` the newest backup in `folder`, so that the run continues there; returns where it is now.

    `source` is one of its own backups, or a copy that was kept elsewhere, which replaces one of the same step. Nothing
    else is removed. Raises ResumeError if it is damaged, OSError if it cannot be copied.
    """
    if fault := find_damage(source):
        raise ResumeError(fault, "Use another backup; `list` shows them")
    number = 1 + max((each.number for each in list_backups(folder)), default=0)
    final = folder / f"step-{read_progress(source).step:06d}"
    if not is_link(final) and final.exists() and final.samefile(source):
        _write_number(final, number)
        return final
    partial = folder / f"{PARTIAL}{final.name}"
    remove_tree(partial)
    try:
        _copy(source, partial, number)
        if fault := find_damage(partial):
            raise ResumeError(f"The copy differs from {source}: {fault}", "Check the disks")
        Backups(folder, keep=1).put_in_place(partial, final)
    finally:
        remove_tree(partial)
    return final


def remove_backups(folder: Path, names: Collection[str]) -> list[str]:
    """Remove those backups in `folder`, and what an earlier removal has left; returns the names that are left.

    Each is renamed first: whoever interrupts this leaves no half of one that looks damaged.
    """
    remove_partial(folder)
    left = []
    for name in names:
        removed = folder / f"{PARTIAL}old-{name}"
        try:
            (folder / name).rename(removed)
        except OSError:
            left.append(name)
            continue
        remove_tree(removed)
        if os.path.lexists(removed):
            left.append(name)
    return left


def _copy(source: Path, target: Path, number: int) -> None:
    target.mkdir(parents=True)
    for name in read_manifest(source).files:
        with open_regular(source / name) as reading, (target / name).open("xb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 20)
        sync_to_disk(target / name)
    _write_number(target, number, read_from=source)


def _write_number(folder: Path, number: int, read_from: Path | None = None) -> None:
    """Write the manifest anew, with another number."""
    manifest = read_manifest(read_from or folder)
    data = {**manifest.model_dump(exclude_none=True), "number": number, "step": read_progress(read_from or folder).step}
    partial = folder / f"{PARTIAL}{MANIFEST}"
    remove_tree(partial)
    with partial.open("x", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
    sync_to_disk(partial)
    os.replace(partial, folder / MANIFEST)
    sync_to_disk(folder)
