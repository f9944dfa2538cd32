"""The backups of a run as their manifests and sizes describe them, and which of them a rotation removes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config import ResumeError
from modules.files import FileFault, file_size, is_link
from modules.run.folder.backup_manifest import (
    BACKUP_NAME,
    MANIFEST,
    Position,
    damaged_file,
    read_manifest,
    read_progress,
)

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
    """The backups in the folder backup/ of a run, the newest first. Damage that only reading finds is not noticed.

    A run that trains may remove some meanwhile: those are left out.
    """
    found = []
    for each in reversed(complete_backups(folder)):
        try:
            found.append(_describe(each))
        except FileNotFoundError:
            if os.path.lexists(each):
                raise
    return [each for each in found if not each.fault or os.path.lexists(each.folder)]


@dataclass(frozen=True)
class Rotation:
    """Which backups stay: the `keep` newest, those of steps that are multiples of `every`, and the young ones."""

    keep: int
    every: int = 0  # steps; 0: none
    days: float = 0.0  # younger ones stay

    def outdated(self, backups: Sequence[BackupInfo]) -> list[BackupInfo]:
        """Which of `backups`, the newest first, do not stay."""
        return [
            each
            for each in backups[self.keep :]
            if each.age_days >= self.days
            and not (self.every and each.position is not None and each.position.step % self.every == 0)
        ]


def complete_backups(folder: Path) -> list[Path]:
    """In the order of writing, which differs from that of steps if a run was resumed from an earlier backup."""
    found = (path for path in folder.glob("step-*") if BACKUP_NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: (backup_number(path), len(path.name), path.name))


def misplaced(folder: Path) -> str | None:
    """A sentence about a link or a file in the place of a backup; None if it is a folder."""
    if is_link(folder):
        return f"{folder} is a link to another folder, which is not followed; copy that with scripts/backup.py restore."
    return None if folder.is_dir() else f"{folder} is not a folder, so it is no backup."


def backup_number(folder: Path) -> int:
    """The backup's number within its run, from 1; 0 if its manifest is unreadable, or it is a link."""
    if misplaced(folder):
        return 0
    try:
        return read_manifest(folder).number
    except ResumeError:
        return 0


def _describe(folder: Path) -> BackupInfo:
    if wrong := misplaced(folder):
        return BackupInfo(folder, 0, folder.lstat().st_mtime, 0, None, wrong)
    number, position, fault = 0, None, ""
    try:
        manifest = read_manifest(folder)
        number = manifest.number
        position = read_progress(folder)
        fault = damaged_file(folder, manifest, reading=False) or ""
    except ResumeError as error:
        fault = str(error)
    sizes = [_size(file) for file in folder.iterdir()]
    written = (folder / MANIFEST).stat() if (folder / MANIFEST).is_file() else folder.stat()
    return BackupInfo(folder, number, written.st_mtime, sum(sizes), position, fault)


def _size(file: Path) -> int:
    """Bytes; 0 for what is no file."""
    try:
        return file_size(file)
    except (OSError, FileFault):
        return 0
