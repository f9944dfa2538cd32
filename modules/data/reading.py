"""Reading cached examples: from memory where possible, from shards where not, each checked once per
process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modules.config import DataError
from modules.data.problems import Problem
from modules.data.shards import checksum

Entry: TypeAlias = dict[str, Tensor]

MEMORY_BYTES = 256 << 20
_OPEN_SHARDS = 256  # each is a memory map; the system allows some tens of thousands


@dataclass(frozen=True)
class Slots:
    """Where each view lies; arrays of one element per view of all rows, -1 where it is not cached."""

    first: NDArray[np.int64]  # [rows + 1], the slot of each row's view 0
    shard: NDArray[np.int32]
    place: NDArray[np.int32]
    checksum: NDArray[np.uint32]


class CachedExamples:
    """What the cache holds of an index. `usable` [rows] is true where all views are cached; `problems` says
    why not."""

    def __init__(
        self, slots: Slots, shards: list[Path], problems: list[Problem], memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._slots = slots
        self._shards = shards
        self._reader = _ShardReader(memory_bytes)
        self._checked = bytearray(len(slots.shard))  # 1 where this process has compared the checksum
        self.problems = problems
        missing = np.concatenate([[0], np.cumsum(slots.shard < 0)])
        self.views = np.diff(slots.first)
        self.usable: NDArray[np.bool_] = missing[slots.first[1:]] == missing[slots.first[:-1]]

    def with_memory(self, memory_bytes: int) -> CachedExamples:
        """The same examples, read through a memory of another size (and empty)."""
        return CachedExamples(self._slots, self._shards, self.problems, memory_bytes)

    def __getstate__(self) -> dict[str, object]:
        # What this process has read stays here: memory maps cannot be pickled, and copies would cost memory.
        return {**self.__dict__, "_reader": _ShardReader(self._reader.memory_bytes)}

    def read(self, row: int, view: int) -> Entry:
        """The tensors that `encode` returned for a view of a usable row; they are shared, so do not change
        them.

        Raises DataError where the shard is damaged or gone.
        """
        slot = int(self._slots.first[row]) + view
        entry = self._reader.remembered(slot)
        if entry is None:
            entry = self._read_shard(slot)
            self._reader.remember(slot, entry)
        return entry

    def _read_shard(self, slot: int) -> Entry:
        path = self._shards[self._slots.shard[slot]]
        try:
            entry = self._reader.read(path, int(self._slots.place[slot]))
        except (OSError, SafetensorError, KeyError) as error:
            raise _damaged(path, str(error)) from error
        if not self._checked[slot]:
            if checksum(entry) != self._slots.checksum[slot]:
                raise _damaged(path, "a checksum does not agree")
            self._checked[slot] = 1
        return entry


class _ShardReader:
    """Open shards and recently read entries, the longest unused ones forgotten first."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._entry_bytes = 0
        self._shards: OrderedDict[Path, _OpenShard] = OrderedDict()

    def remembered(self, slot: int) -> Entry | None:
        entry = self._entries.get(slot)
        if entry is not None:
            self._entries.move_to_end(slot)
        return entry

    def remember(self, slot: int, entry: Entry) -> None:
        self._entries[slot] = entry
        self._entry_bytes += _bytes(entry)
        while self._entry_bytes > self.memory_bytes and len(self._entries) > 1:
            _, forgotten = self._entries.popitem(last=False)
            self._entry_bytes -= _bytes(forgotten)

    def read(self, path: Path, place: int) -> Entry:
        shard = self._shards.get(path)
        if shard is None:
            shard = self._shards[path] = _OpenShard(path)
            if len(self._shards) > _OPEN_SHARDS:
                self._shards.popitem(last=False)
        else:
            self._shards.move_to_end(path)
        return shard.read(place)


class _TensorFile(Protocol):
    """What safetensors gives, which ships no types."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...


class _OpenShard:
    def __init__(self, path: Path) -> None:
        self._file = cast(_TensorFile, safe_open(path, framework="pt"))
        self._names: dict[int, list[str]] = {}
        for key in self._file.keys():  # noqa: SIM118 - not a dict
            place, _, name = key.partition(".")
            self._names.setdefault(int(place), []).append(name)

    def read(self, place: int) -> Entry:
        # A clone: the tensors would otherwise keep the whole memory map, and its pages, alive.
        return {name: self._file.get_tensor(f"{place}.{name}").clone() for name in self._names[place]}


def _bytes(entry: Entry) -> int:
    return sum(tensor.nbytes for tensor in entry.values())


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"The cache file {str(path)!r} is damaged or gone ({why}).",
        "Delete that file and start again (with --resume latest): Tandem then encodes its pictures anew.",
    )
