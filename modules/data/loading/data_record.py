"""What a backup says of the data set, and the order with which a resumed run goes on if that has changed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modules.config import ResumeError
from modules.data.index.column_store import Column, map_columns, pack_columns
from modules.data.loading.order import Order, Turn
from modules.data.rng import UInt64Array, hash_bytes
from modules.files import Record, decode_json, printable, validate_record

_COLUMNS: Final = {
    **dict.fromkeys(("identity", "content"), np.uint64),
    "trained": np.bool_,
    **dict.fromkeys(("shown", "shown_before"), np.int32),
}
_CAPTION: Final = "caption"  # a column that backups up to 0.3.0 lack
_LONGEST_NAME: Final = 1024  # bytes, on average: a foreign backup may hold names that unpack to any size
_NAMED: Final = 3  # images of a kind
_MOST_SHOWN: Final = 2**31 - 1

_Count = Annotated[int, Field(ge=0, lt=1 << 53)]


@dataclass(frozen=True)
class DataTable:
    """The images of a run, trained on or not: arrays [images]."""

    identity: UInt64Array  # Index.identities
    content: UInt64Array  # Examples.contents
    trained: NDArray[np.bool_]
    packed_names: bytes  # paths below the concepts
    is_read: bool  # whether `content` is of what is in the files, not of their sizes: the two cannot be compared
    hash_captions: Callable[[], UInt64Array | None]  # see `caption`

    @classmethod
    def of(
        cls,
        identity: UInt64Array,
        content: UInt64Array,
        trained: NDArray[np.bool_],
        names: bytes,
        *,
        is_read: bool,
        captions: Callable[[], Sequence[bytes]],
    ) -> DataTable:
        """The table of these images; between their names are zero bytes, and `captions` returns one text for each."""

        def hash_captions() -> UInt64Array:
            return np.array([hash_bytes(text) for text in captions()], dtype=np.uint64)

        return cls(identity, content, trained, zlib.compress(names, 1), is_read, hash_captions)

    @cached_property
    def caption(self) -> UInt64Array | None:
        """[images] a hash of each caption as it is written, computed when first asked for; None if it is not known."""
        return self.hash_captions()

    def names(self) -> list[bytes]:
        """The paths, for messages; empty ones if they are damaged. They take much memory."""
        try:
            unpacked = zlib.decompressobj().decompress(self.packed_names, _LONGEST_NAME * len(self.identity) + 1)
        except zlib.error:
            unpacked = b""
        names = unpacked.split(b"\0")
        return names if len(names) == len(self.identity) else [b""] * len(self.identity)


class _Header(Record):
    """Where the order of the present epoch begins: at its first sample, or at the turn in it."""

    order: Annotated[str, Field(max_length=64)]  # Order.digest
    is_read: bool  # DataTable
    samples: _Count
    step: _Count


@dataclass(frozen=True)
class FormerData:
    """The data set of a backup, and the backup's position."""

    table: DataTable
    header: _Header
    shown: NDArray[np.int32]  # [images] how often the present epoch has shown each until the backup
    shown_before: NDArray[np.int32]  # [images] the same until the header's position
    samples: int
    step: int
    epoch: int


def former_data(table: DataTable, order: Order, samples_seen: int) -> FormerData:
    """The data set of a run after `samples_seen` samples."""
    progress = order.progress(samples_seen)
    header = _Header(
        order=order.digest(),
        is_read=table.is_read,
        samples=samples_seen - progress.sample_in_epoch,
        step=progress.step - progress.step_in_epoch,
    )
    base, turn = np.zeros(len(table.identity), dtype=np.int64), order.turn
    if turn is not None and turn.epoch == progress.epoch and turn.shown_of_all is not None:
        base = turn.shown_of_all  # an image that cannot be read now may be readable again

    def of_all(shown: NDArray[np.int64]) -> NDArray[np.int32]:
        known = base.copy()
        known[order.training.rows] = shown
        return np.minimum(known, _MOST_SHOWN).astype(np.int32)

    shown, before = of_all(order.shown(progress)), of_all(order.shown_before(progress.epoch))
    return FormerData(table, header, shown, before, samples_seen, progress.step, progress.epoch)


def dump_record(table: DataTable, order: Order, samples_seen: int) -> bytes:
    """What a backup keeps of the data set after `samples_seen` samples."""
    former = former_data(table, order, samples_seen)
    columns: dict[str, Column] = {
        "identity": table.identity,
        "content": table.content,
        "trained": table.trained,
        "names": np.frombuffer(table.packed_names, dtype=np.uint8),
        "shown": former.shown,
        "shown_before": former.shown_before,
    }
    if table.caption is not None:
        columns[_CAPTION] = table.caption
    return pack_columns(columns, former.header.model_dump_json())


def read_record(file: Path, samples: int, step: int, epoch: int) -> FormerData:
    """What `dump_record` made, of a backup at this position. Raises ResumeError if it is damaged."""
    try:
        mapped, text = map_columns(file)
        header = validate_record(_Header, decode_json(text))
        # copied: the backup may be removed while the run goes on
        kinds = _COLUMNS | ({_CAPTION: np.uint64} if _CAPTION in mapped else {})
        columns = {name: np.array(mapped[name]) for name in (*kinds, "names")}
        for name, kind in kinds.items():
            if columns[name].dtype != kind or columns[name].shape != (len(columns["identity"]),):
                raise ValueError(f"its column {name} has another type or length")
        if columns["names"].dtype != np.uint8 or columns["names"].ndim != 1:
            raise ValueError("its column names has another type or length")
        if header.samples > samples or header.step > step:
            raise ValueError("it is of a later step")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{file} is damaged: {printable(error, 200)}.") from None
    caption = columns[_CAPTION].astype(np.uint64) if _CAPTION in columns else None
    table = DataTable(
        columns["identity"].astype(np.uint64),
        columns["content"].astype(np.uint64),
        columns["trained"].astype(np.bool_),
        columns["names"].tobytes(),
        header.is_read,
        lambda: caption,
    )
    shown, before = (np.maximum(columns[name].astype(np.int32), 0) for name in ("shown", "shown_before"))
    return FormerData(table, header, shown, before, samples, step, epoch)


def resumed_order(
    former: FormerData, table: DataTable, make: Callable[[Turn | None], Order], since: str = " since the backup"
) -> tuple[Order, str]:
    """The order with which the run of a backup goes on, and in a sentence what has changed `since`; empty if nothing
    has.

    `table` is the data as it is now, and `make` makes its order.
    """
    plain = make(None)
    changes = _Changes(former.table, table)
    rows = plain.training.rows
    if plain.digest() == former.header.order and not changes.swapped:
        shown = _taken(former.shown_before, changes.row_before)
        order = make(Turn(former.header.samples, former.header.step, former.epoch, shown[rows], shown))
        effect = "The order stays the same."
    else:
        shown = _taken(former.shown, changes.row_before)
        order = make(Turn(former.samples, former.step, former.epoch, shown[rows], shown))
        left = len(order.epoch(former.epoch))
        effect = f"The next epoch has {order.epoch_size:,} samples."
        if former.shown.any():
            effect = (
                f"The epoch goes on with the {left:,} samples of these that it has not shown yet; the next ones have "
                f"{order.epoch_size:,}."
            )
    told = changes.told()
    if not told and plain.digest() != former.header.order:
        told = "the sizes of the images, their repeats, the seed or drop_last"
    return order, f"The data has changed{since}: {told}. {effect}" if told else ""


class _Changes:
    """Which images came, went, were renamed (the same content under another name) or changed.

    A name may have been taken over by another image: of two that swap theirs, both are renamed.
    """

    def __init__(self, before: DataTable, now: DataTable) -> None:
        if before.is_read != now.is_read:
            before = replace(before, content=np.zeros_like(before.content))
        self._before, self._now = before, now
        row_before = _find(now.identity, before.identity)
        kept = np.flatnonzero(row_before >= 0)
        one, other = before.content[row_before[kept]], now.content[kept]
        changed = kept[(one != other) & (one != 0) & (other != 0)]
        left = np.ones(len(before.identity), dtype=np.bool_)  # the former images that are not under their names
        left[row_before[np.setdiff1d(kept, changed)]] = False
        found = row_before < 0
        found[changed] = True
        self._renamed = old, new = _renamed(before, now, left, found)
        self.swapped = bool(np.isin(new, kept).any())  # equal names may be those of other images
        row_before[np.isin(row_before, old)] = -1
        row_before[new] = old
        self.row_before = row_before  # [images now] the row of each in the former table; -1 of new ones
        self._came = np.flatnonzero(row_before < 0)
        self._went = np.setdiff1d(np.arange(len(before.identity)), row_before)
        self._changed = np.setdiff1d(changed[row_before[changed] >= 0], new)
        known = np.flatnonzero(row_before >= 0)
        self._recaptioned = known[:0]
        if before.caption is not None and now.caption is not None:
            self._recaptioned = known[before.caption[row_before[known]] != now.caption[known]]
        trained = before.trained[row_before[known]]
        self._held_out = known[trained & ~now.trained[known]]
        self._trained = known[~trained & now.trained[known]]

    def told(self) -> str:
        """The changes with their counts and some names; empty if there are none."""
        kinds = {
            "came": self._came,
            "went": self._went,
            "renamed or moved": self._renamed[1],
            "with other content": self._changed,
            "with another caption": self._recaptioned,
            "no longer trained on": self._held_out,
            "trained on from now on": self._trained,
        }
        if not any(map(len, kinds.values())):
            return ""
        before, now = self._before.names(), self._now.names()

        def named(kind: str, number: int) -> str:
            row = int(kinds[kind][number])
            if kind == "went":
                return _shown(before[row])
            former = _shown(before[self._renamed[0][number]]) + " -> " if kind == "renamed or moved" else ""
            return former + _shown(now[row])

        parts = []
        for kind, rows in kinds.items():
            names = [named(kind, number) for number in range(min(len(rows), _NAMED))]
            more = f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
            parts += [f"{len(rows):,} {kind} ({', '.join(names)}{more})"] if names else []
        return ", ".join(parts)


def _renamed(
    before: DataTable, now: DataTable, gone: NDArray[np.bool_], came: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows before and now of images that are gone and came with the same content: of several with the same, such as
    one file at several resolutions, as many as are gone have to come, in their order. Where only sizes are known, no
    other image may have the same."""
    if not now.is_read:
        gone, came = gone & _is_only_one(before.content), came & _is_only_one(now.content)
    old, new = _by_content(before.content, gone), _by_content(now.content, came)
    values, counts = np.unique(before.content[old], return_counts=True)
    values_now, counts_now = np.unique(now.content[new], return_counts=True)
    _, in_old, in_new = np.intersect1d(values, values_now, assume_unique=True, return_indices=True)
    same = values[in_old[counts[in_old] == counts_now[in_new]]]
    old, new = old[np.isin(before.content[old], same)], new[np.isin(now.content[new], same)]
    order = np.argsort(new)
    return old[order], new[order]


def _is_only_one(content: UInt64Array) -> NDArray[np.bool_]:
    """Which images have a content that no other one has."""
    _, places, counts = np.unique(content, return_inverse=True, return_counts=True)
    is_one: NDArray[np.bool_] = counts[places] == 1
    return is_one


def _by_content(content: UInt64Array, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The chosen rows whose content is known, by it, then in their order."""
    rows = np.flatnonzero(chosen & (content != 0))
    return rows[np.argsort(content[rows], kind="stable")]


def _shown(name: bytes) -> str:
    return printable(os.fsdecode(name), 100)


def _find(wanted: UInt64Array, among: UInt64Array) -> NDArray[np.int64]:
    """int64 [wanted]: the place of each in `among`, -1 if it is not there."""
    if np.array_equal(wanted, among):
        return np.arange(len(wanted))
    if not len(among):
        return np.full(len(wanted), -1)
    by_value = np.argsort(among, kind="stable")
    found = by_value[np.minimum(np.searchsorted(among[by_value], wanted), len(among) - 1)]
    return np.where(among[found] == wanted, found, -1)


def _taken(values: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [rows]: the values of these rows, 0 for those that are -1."""
    return np.append(values, 0)[rows].astype(np.int64)
