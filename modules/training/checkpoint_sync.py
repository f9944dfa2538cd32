"""Resuming from one and the same backup on all ranks, also on machines that do not have it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from modules.checkpoint import TrainingState, read_backup
from modules.config import ResumeError
from modules.distributed import RankGroup
from modules.run import RunFolder

RECEIVED = "received"  # in the run folder, while a backup from another machine is read


def load_checkpoint(backup: Path | None, folder: RunFolder, ranks: RankGroup) -> TrainingState | None:
    """The state in the newest backup that any rank found; None if none did.

    Ranks that do not have it get its files from one that does. Raises ResumeError if it is damaged.
    """
    offers = ranks.gather("backup", "" if backup is None else _describe(backup))
    if not any(offers):
        return None
    holder = max(range(len(offers)), key=lambda rank: (_number(offers[rank]), -rank))
    has_it = [offer == offers[holder] for offer in offers]
    if all(has_it):
        return _read(backup)
    groups = ranks.shared_folder_groups("runs_dir", folder.path)
    received = folder.path / RECEIVED / json.loads(offers[holder])["name"]
    receiver = next((rank for rank in groups.group if not has_it[rank]), None)
    target = received if receiver == groups.rank else None
    ranks.broadcast_folder(backup, target, holder, "backup")
    ranks.gather("backup delivered", "")
    state = _read(backup if has_it[groups.rank] else received)
    ranks.gather("backup read", "")
    if target is not None:
        shutil.rmtree(received.parent, ignore_errors=True)
    return state


def _describe(backup: Path) -> str:
    """Its name, its number in the run, and the hash of its manifest, which holds the checksums of all files."""
    try:
        manifest = (backup / "manifest.json").read_bytes()
        number = int(json.loads(manifest)["number"])
    except (OSError, ValueError, KeyError, TypeError):
        read_backup(backup)  # raises, with what is wrong
        raise ResumeError(f"resume: {backup} has a manifest.json that cannot be read.") from None
    digest = hashlib.sha256(manifest).hexdigest()
    return json.dumps({"name": backup.resolve().name, "number": number, "sha256": digest})


def _number(offer: str) -> int:
    return int(json.loads(offer)["number"]) if offer else -1


def _read(backup: Path | None) -> TrainingState:
    assert backup is not None, "a rank without a backup is sent one"
    return read_backup(backup)
