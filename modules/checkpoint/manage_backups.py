"""What a person does with the backups of a run: see them, check them, go back to one, and remove old ones."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from modules.checkpoint.backup_files import MANIFEST, Position, find_damage, read_manifest, read_progress
from modules.checkpoint.backups import PARTIAL, Backups, complete_backups, sync_to_disk
from modules.config import ResumeError
from modules.files import FileFault, file_size, open_regular, remove_tree

_DAY_S = 24 * 3600.0


@dataclass(frozen=True)
class BackupInfo:
    """One backup, as its manifest and sizes say without reading the weights."""

    folder: Path
    number: int  # within the run, in the order of writing; 0 if the manifest cannot be read
    written: float  # seconds since 1970
    size: int  # bytes
    position: Position | None  # None if `fault` says why
    fault: str = ""  # what is wrong, in a sentence

    @property
    def age_days(self) -> float:
        """Days since it was written."""
        return (time.time() - self.written) / _DAY_S


def list_backups(folder: Path) -> list[BackupInfo]:
    """The backups in the folder backup/ of a run, the newest first. Damage that only reading finds is not noticed."""
    return [_describe(each) for each in reversed(complete_backups(folder))]


def go_back_to(folder: Path, source: Path) -> Path:
    """Make `source` the newest backup in `folder`, so that the run continues there; returns where it is now.

    `source` is one of its own backups, or a copy that was kept elsewhere. Nothing else is removed. Raises ResumeError
    if it is damaged, OSError if it cannot be copied.
    """
    if fault := find_damage(source):
        raise ResumeError(fault, "Use another backup; `list` shows them")
    number = 1 + max((each.number for each in list_backups(folder)), default=0)
    final = folder / f"step-{read_progress(source).step:06d}"
    if final.exists() and final.samefile(source):
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


def to_remove(backups: list[BackupInfo], keep: int, every: int = 0, min_age_days: float = 0.0) -> list[BackupInfo]:
    """Which of `backups` (the newest first) a pruning removes: neither the `keep` newest, nor those of steps that are
    multiples of `every` (0: none), nor any younger than `min_age_days`."""
    return [
        each
        for each in backups[keep:]
        if each.age_days >= min_age_days and not (every and each.position and each.position.step % every == 0)
    ]


def _describe(folder: Path) -> BackupInfo:
    number, position, fault = 0, None, ""
    try:
        manifest = read_manifest(folder)
        number = manifest.number
        position = read_progress(folder)
        for name, entry in manifest.files.items():
            if _size(folder / name) != entry.size:
                raise ResumeError(f"{folder} is damaged: {name} is missing or has another size.")
    except ResumeError as error:
        fault = str(error)
    sizes = [_size(file) for file in folder.iterdir()] if folder.is_dir() else []
    written = (folder / MANIFEST).stat() if (folder / MANIFEST).is_file() else folder.stat()
    return BackupInfo(folder, number, written.st_mtime, sum(sizes), position, fault)


def _size(file: Path) -> int:
    """Bytes; 0 for what is no file."""
    try:
        return file_size(file)
    except (OSError, FileFault):
        return 0


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
    data = {**manifest.model_dump(), "number": number, "step": read_progress(read_from or folder).step}
    partial = folder / f"{PARTIAL}{MANIFEST}"
    remove_tree(partial)
    with partial.open("x", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
    sync_to_disk(partial)
    os.replace(partial, folder / MANIFEST)
    sync_to_disk(folder)
