"""Resuming from one and the same backup on all ranks, also on machines that do not have it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field

from modules.checkpoint import (
    MANIFEST,
    StoredState,
    file_names,
    manifest_sha256,
    read_manifest,
)
from modules.config import ResumeError
from modules.distributed import RankGroup
from modules.files import FileFault, Record, decode_json, remove_tree, validate_record
from modules.run import RunFolder
from modules.training.backup.find_backup import open_verified


class Offer(Record):
    """What a rank says of its backup: its number in the run and the hash of the manifest, which holds all checksums."""

    number: Annotated[int, Field(ge=1, lt=1 << 53)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    parts: Annotated[int, Field(ge=1, le=99_999)] | None = None  # as in the manifest


@contextmanager
def open_checkpoint(backup: Path | None, folder: RunFolder, ranks: RankGroup) -> Iterator[StoredState | None]:
    """The state in the newest backup that any rank found, open for the time of the block; None if none did.

    Ranks that do not have it get its files from one that does. Raises ResumeError if it is damaged, or if another
    rank sends something else than a backup.
    """
    offers = [
        _offer(rank, text) for rank, text in enumerate(ranks.gather("backup", "" if backup is None else _own(backup)))
    ]
    newest = max((offer for offer in offers if offer is not None), key=lambda offer: offer.number, default=None)
    if newest is None:
        yield None
        return
    has_it = [offer == newest for offer in offers]
    names = file_names(newest.parts) | {MANIFEST}
    with local_copy(backup, has_it, newest.sha256, names, "backup", folder, ranks) as copy:
        yield _open(copy, newest, folder, ranks)


@contextmanager
def local_copy(
    own: Path | None,
    has_it: Sequence[bool],
    sha256: str,
    names: Collection[str],
    name: str,
    folder: RunFolder,
    ranks: RankGroup,
) -> Iterator[Path]:
    """A folder on this machine with the files `names` that the ranks in `has_it` have in `own`.

    Machines whose ranks all lack it receive it into the run folder, for the time of the block. All ranks enter and
    leave the block. `sha256` tells apart what is sent; `name` names it to people who wait.
    """
    if all(has_it):
        assert own is not None, "this rank has it"
        yield own
        return
    groups = ranks.shared_folder_groups("runs_dir", folder.path)
    received = folder.received_dir / sha256[:16]
    receiver = next((rank for rank in groups.group if not has_it[rank]), None)
    target = received if receiver == groups.rank else None
    ranks.broadcast_folder(own, target, list(has_it).index(True), name, names)
    ranks.gather(f"{name} delivered", "")
    copy = own if has_it[groups.rank] else received
    assert copy is not None, "a rank without it is sent one"
    try:
        yield copy
        ranks.gather(f"{name} read", "")
    finally:
        if target is not None:
            remove_tree(folder.received_dir)


def _own(backup: Path) -> str:
    manifest = read_manifest(backup)
    offer = Offer(number=manifest.number, sha256=manifest_sha256(backup), parts=manifest.parts)
    return offer.model_dump_json()


def _offer(rank: int, text: str) -> Offer | None:
    if not text:
        return None
    try:
        return validate_record(Offer, decode_json(text))
    except FileFault as error:
        raise ResumeError(f"resume: what rank {rank} says of its backup {error}.") from None


def _open(backup: Path, expected: Offer, folder: RunFolder, ranks: RankGroup) -> StoredState:
    if manifest_sha256(backup) != expected.sha256:
        raise ResumeError(f"resume: {backup} is not the backup that was announced; another rank sent something else.")
    return open_verified(backup, folder, ranks)
