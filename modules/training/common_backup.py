"""Going on from one and the same backup on all ranks, also on machines that do not have it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Protocol

from modules.checkpoint import TrainingState, read_backup
from modules.config import ResumeError
from modules.distributed import Group, Neighbours, deliver_folder
from modules.run import RunFolder

RECEIVED = "received"  # in the run folder, while a backup from another machine is read


class Ranks(Protocol):
    """What a trainer offers for talking to the other ranks."""

    def gather(self, name: str, text: str) -> list[str]: ...
    def neighbours(self, name: str, folder: Path) -> Neighbours: ...


def common_state(backup: Path | None, folder: RunFolder, ranks: Ranks, group: Group) -> TrainingState | None:
    """The state of the newest backup that any rank found; None where none did.

    Ranks that do not have it get its files from one that does. Raises ResumeError where it is damaged.
    """
    offers = ranks.gather("backup", "" if backup is None else _describe(backup))
    if not any(offers):
        return None
    holder = max(range(len(offers)), key=lambda rank: (_number(offers[rank]), -rank))
    has_it = [offer == offers[holder] for offer in offers]
    if all(has_it):
        return _read(backup)
    near = ranks.neighbours("runs_dir", folder.path)
    received = folder.path / RECEIVED / json.loads(offers[holder])["name"]
    receiver = next((rank for rank in near.ranks if not has_it[rank]), None)
    target = received if receiver == near.rank else None
    deliver_folder(backup, target, holder, name="backup", store=group.store, group=group.control)
    ranks.gather("backup delivered", "")
    state = _read(backup if has_it[near.rank] else received)
    ranks.gather("backup read", "")
    if target is not None:
        shutil.rmtree(received.parent, ignore_errors=True)
    return state


def _describe(backup: Path) -> str:
    """Its name, its number in its run, and what makes it this one: the manifest holds the sums of all files."""
    try:
        manifest = (backup / "manifest.json").read_bytes()
        number = int(json.loads(manifest)["number"])
    except (OSError, ValueError, KeyError, TypeError):
        read_backup(backup)  # says what is wrong with it
        raise ResumeError(f"resume: {backup} has a manifest.json that cannot be read.") from None
    digest = hashlib.sha256(manifest).hexdigest()
    return json.dumps({"name": backup.resolve().name, "number": number, "sha256": digest})


def _number(offer: str) -> int:
    return int(json.loads(offer)["number"]) if offer else -1


def _read(backup: Path | None) -> TrainingState:
    assert backup is not None, "a rank without a backup is sent one"
    return read_backup(backup)
