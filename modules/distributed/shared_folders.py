"""Which ranks see the same folder: machines may share a network drive or have one folder each."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modules.config import ConfigError
from modules.distributed.run_store import StoreFault, parse_value
from modules.files import write_fault

Gather = Callable[[str, str], list[str]]  # (name, this rank's text) -> the texts of all ranks


@dataclass(frozen=True)
class SharedFolderGroups:
    """The ranks grouped by the folder they see, as one of them; together the groups hold every rank once."""

    rank: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks that see this rank's folder, itself included, in order."""
        return next(group for group in self.groups if self.rank in group)

    @property
    def index_in_group(self) -> int:
        """This rank's index in its group."""
        return self.group.index(self.rank)

    @property
    def is_first_in_group(self) -> bool:
        """Whether this rank does the work that is done once per folder."""
        return self.index_in_group == 0

    @property
    def is_shared_by_all(self) -> bool:
        """Whether all ranks see one and the same folder."""
        return len(self.groups) == 1


def find_shared_folder_groups(name: str, folder: Path, rank: int, gather: Gather) -> SharedFolderGroups:
    """Every rank writes a marker file to its `folder` and looks for those of the others.

    `name` is the setting that names it, such as "cache_dir". The folder is created if it does not exist.
    Raises ConfigError if it cannot be written.
    """
    nonces = gather(name, uuid.uuid4().hex)
    if odd := [sender for sender, nonce in enumerate(nonces) if re.fullmatch("[0-9a-f]{32}", nonce) is None]:
        raise StoreFault(f"rank {odd[0]} names a file that cannot be its mark in {name}.")
    markers = [folder / f".mark-{nonce}" for nonce in nonces]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            markers[rank].touch()
        except OSError as error:
            raise ConfigError(
                f"{name}: {str(folder)!r} cannot be written: {write_fault(error, folder)}.",
                "Choose a writable folder with free space.",
            ) from error
        gather(f"{name} marked", "")
        visible = [other for other, marker in enumerate(markers) if marker.exists()]
        all_visible = gather(f"{name} seen", json.dumps(visible))
    finally:
        with suppress(OSError):
            markers[rank].unlink(missing_ok=True)
    return SharedFolderGroups(
        rank, group_by_visibility([_ranks(text, sender) for sender, text in enumerate(all_visible)])
    )


def _ranks(text: str, sender: int) -> list[int]:
    return parse_value(list[int], text, f"the folders that rank {sender} sees")


def group_by_visibility(visible: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Group ranks that see each other's markers; `visible` lists for each rank whose markers it saw.

    If only one of two sees the other, they do not share a group, which costs time but never correctness.
    """
    groups: list[tuple[int, ...]] = []
    left = set(range(len(visible)))
    while left:
        first = min(left)
        group = {rank for rank in left if rank == first or (rank in visible[first] and first in visible[rank])}
        groups.append(tuple(sorted(group)))
        left -= group
    return tuple(groups)
