"""The backup that a start resumes from. One rank of each machine hashes its files; the others there trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from modules.checkpoint import (
    Backups,
    StoredState,
    find_damage,
    is_verified,
    manifest_sha256,
    misplaced,
    not_resumable,
    open_backup,
    trust_checksums,
)
from modules.config import ResumeError
from modules.distributed import RankGroup, parse_value
from modules.files import Record, printable
from modules.monitoring import Report
from modules.run import RunFolder
from modules.run.folder.resume import LATEST


class _Newest(Record):
    """The newest valid backup that a rank has found: all empty if it has found, or was asked for, none."""

    name: Annotated[str, Field(pattern=r"^(step-\d{6,16})?$")] = ""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""  # of the manifest, which holds all checksums
    damaged: list[str] = Field(default_factory=list)  # a sentence about each newer one


def find_backup(resume: str | None, folder: RunFolder, report: Report, ranks: RankGroup) -> Path | None:
    """The backup that --resume asks for; None for a new run, or one that ended before its first backup.

    Ranks on other machines than rank 0 need not have it: they are sent it. Called by all ranks. Raises ResumeError if
    every backup is damaged.
    """
    asked = ranks.gather("resume", resume or "")
    if not any(asked):
        return None
    verifier = verifying_rank(folder, ranks)
    own = _newest(folder) if ranks.rank == verifier and resume == LATEST else _Newest()
    found = ranks.gather("newest backup", own.model_dump_json())
    if resume != LATEST:
        is_there = resume is not None and (ranks.rank == 0 or Path(resume).is_dir())
        return Path(str(resume)) if is_there else None
    if ranks.rank != verifier:
        said = parse_value(_Newest, found[verifier], f"the backup that rank {verifier} has found")
        own = said if asked[verifier] == LATEST and _is_here(said, folder) else _newest(folder)
    for fault in own.damaged:
        report.warning(fault)
    if own.name:
        return folder.backup_dir / own.name
    if own.damaged:
        raise ResumeError(
            f"resume: no backup in {folder.backup_dir} is undamaged.",
            "Start a new run under another --run_name.",
        )
    report.note(f"{folder.path} has no backup yet: starting at the first step.")
    return None


def open_verified(backup: Path, folder: RunFolder, ranks: RankGroup) -> StoredState:
    """As `open_backup`, with checksums that one rank of each machine computes. Called by all ranks."""
    verifier = verifying_rank(folder, ranks)
    own = "" if ranks.rank != verifier or is_verified(backup) else find_damage(backup) or ""
    if fault := ranks.gather("backup verified", own)[verifier]:
        raise not_resumable(printable(fault, 1000))
    if ranks.rank != verifier:
        trust_checksums(backup)
    return open_backup(backup)


def _newest(folder: RunFolder) -> _Newest:
    newest, damaged = Backups(folder.backup_dir, keep=1).newest_valid()
    if newest is None:
        return _Newest(damaged=damaged)
    return _Newest(name=newest.name, sha256=manifest_sha256(newest), damaged=damaged)


def _is_here(said: _Newest, folder: RunFolder) -> bool:
    """Whether this rank sees the same files."""
    if not said.name:
        return True
    backup = folder.backup_dir / said.name
    try:
        return misplaced(backup) is None and manifest_sha256(backup) == said.sha256
    except ResumeError:
        return False


def verifying_rank(folder: RunFolder, ranks: RankGroup) -> int:
    """The first rank of this rank's machine that sees the same run folder: the one that computes checksums."""
    rows = ranks.cluster_info.rows
    group = ranks.shared_folder_groups("runs_dir", folder.path).group
    return next(rank for rank in group if rows[rank].host == rows[ranks.rank].host)
