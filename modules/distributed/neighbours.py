"""Which ranks see the same folder: machines may share a disk over the network, or each have one of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modules.config import ConfigError

Gather = Callable[[str, str], list[str]]  # (name, this rank's text) -> the texts of all ranks


@dataclass(frozen=True)
class Neighbours:
    """The ranks that see one folder together with this one; `groups` are those of all ranks, in order."""

    rank: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """This rank and those that see the folder with it, in order."""
        return next(group for group in self.groups if self.rank in group)

    @property
    def position(self) -> int:
        """This rank's number among them."""
        return self.ranks.index(self.rank)

    @property
    def is_first(self) -> bool:
        """Whether this rank does what is done once for each folder."""
        return self.position == 0

    @property
    def is_shared(self) -> bool:
        """Whether all ranks see one and the same folder."""
        return len(self.groups) == 1


def find_neighbours(name: str, folder: Path, rank: int, gather: Gather) -> Neighbours:
    """Ask the disk itself: every rank leaves a mark in its `folder` and looks for those of the others.

    `name` is the setting that names it, such as "cache_dir". It is made where it is missing.
    Raises ConfigError where it cannot be written.
    """
    nonces = gather(name, uuid.uuid4().hex)
    marks = [folder / f".mark-{nonce}" for nonce in nonces]
    try:
        _leave(name, marks[rank])
        gather(f"{name} marked", "")
        seen = [other for other, mark in enumerate(marks) if mark.exists()]
        sights = gather(f"{name} seen", json.dumps(seen))
    finally:
        with suppress(OSError):
            marks[rank].unlink(missing_ok=True)
    return Neighbours(rank, group_by_sight([json.loads(sight) for sight in sights]))


def group_by_sight(sights: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Ranks in groups that see each other's marks; `sights` says for each rank whose marks it saw.

    Where only one of two sees the other they count as apart, which costs work and never correctness.
    """
    groups: list[tuple[int, ...]] = []
    left = set(range(len(sights)))
    while left:
        first = min(left)
        group = {rank for rank in left if rank == first or (rank in sights[first] and first in sights[rank])}
        groups.append(tuple(sorted(group)))
        left -= group
    return tuple(groups)


def _leave(name: str, mark: Path) -> None:
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise ConfigError(
            f"{name}: {str(mark.parent)!r} cannot be written: {error.strerror or error}.",
            "Choose a folder you may write to, with space left.",
        ) from error
