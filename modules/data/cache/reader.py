"""Reading cached examples from an LRU cache in memory or from shards; each entry is verified once per process."""

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
from modules.data.cache.shards import checksum
from modules.data.index.problems import Problem
from modules.data.rng import SampleRng, UInt64Array
from modules.files import file_size

Entry: TypeAlias = dict[str, Tensor]

MEMORY_BYTES = 256 << 20
_MAX_OPEN_SHARDS = 256  # each is a memory map; the system allows some tens of thousands


@dataclass(frozen=True)
class Slots:
    """Where each view is stored; arrays [slots], one slot per view of every row, -1 if it is not cached."""

    first: NDArray[np.int64]  # [rows + 1], the slot of each row's view 0
    shard: NDArray[np.int32]  # number in the list of shards
    position: NDArray[np.int32]  # in the shard
    checksum: NDArray[np.uint32]


class CachedExamples:
    """What the cache holds of an index: bool `usable` [rows] (all views are cached), int64 `views` [rows], the
    `problems` of the rows that are not usable, and uint64 `contents` [rows]."""

    def __init__(
        self,
        slots: Slots,
        shards: list[Path],
        problems: list[Problem],
        contents: UInt64Array,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._slots = slots
        self._shards = shards
        self._reader = _ShardReader(memory_bytes)
        self._checked = bytearray(len(slots.shard))  # [slots], 1 once this process has verified the checksum
        self.problems = problems
        self.contents = contents
        missing = np.concatenate([[0], np.cumsum(slots.shard < 0)])
        self.views = np.diff(slots.first)
        self.usable: NDArray[np.bool_] = missing[slots.first[1:]] == missing[slots.first[:-1]]

    def with_memory(self, memory_bytes: int) -> CachedExamples:
        """The same examples with another limit (bytes) for what is kept in memory, and nothing kept yet."""
        return CachedExamples(self._slots, self._shards, self.problems, self.contents, memory_bytes)

    def shards(self) -> list[Path]:
        """The files in which any of its views are."""
        numbers = np.unique(self._slots.shard)
        return [self._shards[number] for number in numbers[numbers >= 0].tolist()]

    def __getstate__(self) -> dict[str, object]:
        # Without what this process has read: memory maps cannot be pickled, and copies would cost memory.
        return {**self.__dict__, "_reader": _ShardReader(self._reader.memory_bytes)}

    def sample(self, row: int, rng: SampleRng | None) -> Entry:
        """The tensors of a random view of a usable row, or without `rng` those of its first; do not modify them."""
        return self.read(row, 0 if rng is None else rng.integer(int(self.views[row])))

    def read(self, row: int, view: int) -> Entry:
        """The tensors that `encode` returned for a view of a usable row; they are shared, so do not modify them.

        Raises DataError if the shard is damaged or missing.
        """
        slot = int(self._slots.first[row]) + view
        entry = self._reader.get(slot)
        if entry is None:
            entry = self._read_shard(slot)
            self._reader.put(slot, entry)
        return entry

    def _read_shard(self, slot: int) -> Entry:
        path = self._shards[self._slots.shard[slot]]
        try:
            entry = self._reader.read(path, int(self._slots.position[slot]))
        except FileNotFoundError:
            raise cache_file_gone(path) from None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        if not self._checked[slot]:
            if checksum(entry) != self._slots.checksum[slot]:
                raise _damaged(path, "checksum mismatch")
            self._checked[slot] = 1
        return entry


class _ShardReader:
    """Open shards and recently read entries, both with least-recently-used eviction."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._entry_bytes = 0
        self._shards: OrderedDict[Path, OpenShard] = OrderedDict()

    def get(self, slot: int) -> Entry | None:
        entry = self._entries.get(slot)
        if entry is not None:
            self._entries.move_to_end(slot)
        return entry

    def put(self, slot: int, entry: Entry) -> None:
        self._entries[slot] = entry
        self._entry_bytes += _bytes(entry)
        while self._entry_bytes > self.memory_bytes and len(self._entries) > 1:
            _, evicted = self._entries.popitem(last=False)
            self._entry_bytes -= _bytes(evicted)

    def read(self, path: Path, position: int) -> Entry:
        shard = self._shards.get(path)
        if shard is None:
            shard = self._shards[path] = OpenShard(path)
            if len(self._shards) > _MAX_OPEN_SHARDS:
                self._shards.popitem(last=False)
        else:
            self._shards.move_to_end(path)
        return shard.read(position)


class _TensorFile(Protocol):
    """The type of `safe_open`, which safetensors does not ship."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...


class OpenShard:
    """A shard whose entries are read one by one. Raises OSError or SafetensorError if it is no such file."""

    def __init__(self, path: Path) -> None:
        file_size(path)  # raises for what is no file
        self._file = cast(_TensorFile, safe_open(path, framework="pt"))
        self._names: dict[int, list[str]] = {}
        for key in self._file.keys():  # noqa: SIM118 - not a dict
            position, _, name = key.partition(".")
            self._names.setdefault(int(position), []).append(name)

    def read(self, position: int) -> Entry:
        """The tensors of the entry at `position`. Raises KeyError or SafetensorError if it is not there."""
        # Cloned, because the tensors would keep the whole memory map and its pages alive.
        return {name: self._file.get_tensor(f"{position}.{name}").clone() for name in self._names[position]}


def _bytes(entry: Entry) -> int:
    return sum(tensor.nbytes for tensor in entry.values())


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"The cache file {str(path)!r} is damaged ({why}).",
        "Delete that file and start again (with --resume latest): Tandem then encodes its images again.",
    )


def cache_file_gone(path: Path) -> DataError:
    """What to raise if a file of the cache folder that was there is not any more."""
    folder = next((each for each in reversed(path.parents) if not each.exists()), None)
    what = f"file {str(path)!r}" if folder is None else f"folder {str(folder)!r}"
    return DataError(
        f"The cache {what} is gone: it was removed during the run, or its disk is not mounted any more.",
        "Bring the disk back if that is the cause, and start again with --resume latest: Tandem encodes again what is "
        "missing.",
    )
