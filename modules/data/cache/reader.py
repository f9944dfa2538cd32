"""Reading cached examples from shards, as many as fit once into memory; each entry is verified once per process."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modules.config import DataError
from modules.data.cache.keys import text_key
from modules.data.cache.shards import checksum
from modules.data.cache.table import CacheTable, cache_file_gone
from modules.data.index.problems import Problem
from modules.data.rng import SampleRng
from modules.files import file_size, printable

Entry: TypeAlias = dict[str, Tensor]

MEMORY_BYTES = 256 << 20
_RETRY = "Delete the files views-*.safetensors in it and start again (with --resume latest): Tandem makes them again."
_MAX_OPEN_SHARDS = 256  # each is a memory map; the system allows some tens of thousands


class CachedExamples:
    """What the cache holds of an index: bool `usable` [rows] (all views and captions are cached), the `problems` of the
    rows that are not usable, and uint64 `contents` [rows]."""

    def __init__(
        self, cache_dir: Path, table: CacheTable, problems: list[Problem], text_fingerprint: str, memory_bytes: int
    ) -> None:
        self._cache_dir, self._table, self._text_fingerprint = cache_dir, table, text_fingerprint
        self._paths = [cache_dir / name for name in table.header.shards]
        self._reader = _ShardReader(memory_bytes)
        slots = len(table.shard) + len(table.text_shard)  # captions behind views
        self._checked = bytearray(slots)  # 1 once this process has verified the checksum
        self.problems = problems
        self.contents, self.usable = table.contents, table.usable

    @property
    def views(self) -> NDArray[np.int64]:
        """[rows], how many views each has."""
        return np.diff(self._table.first)

    def with_memory(self, memory_bytes: int) -> CachedExamples:
        """The same examples with another limit (bytes) for what is kept in memory, and nothing kept yet."""
        return CachedExamples(self._cache_dir, self._table, self.problems, self._text_fingerprint, memory_bytes)

    def files(self) -> list[Path]:
        """The files that it reads."""
        numbers = np.union1d(self._table.shard, self._table.text_shard)
        shards = [self._paths[number] for number in numbers[numbers >= 0].tolist()]
        return shards + ([self._table.path] if self._table.path else [])

    def __getstate__(self) -> dict[str, object]:
        # Without what this process has read: memory maps cannot be pickled, and copies would cost memory.
        return {**self.__dict__, "_reader": _ShardReader(self._reader.memory_bytes)}

    def sample(self, row: int, rng: SampleRng | None) -> Entry:
        """The tensors of a random view of a usable row, or without `rng` those of its first; do not modify them."""
        views = int(self._table.first[row + 1]) - int(self._table.first[row])
        return self.read(row, 0 if rng is None else rng.integer(views))

    def read(self, row: int, view: int) -> Entry:
        """The tensors that `encode` returned for a view of a usable row; they are shared, so do not modify them.

        Raises DataError if the shard is damaged or missing.
        """
        table, slot = self._table, int(self._table.first[row]) + view
        return self._read(slot, int(table.shard[slot]), int(table.position[slot]), int(table.checksum[slot]))

    def text(self, caption: str) -> Entry:
        """The tensors of a caption of a usable row, if captions are cached by themselves; else none.

        Raises DataError if the shard is damaged or missing.
        """
        if not self._text_fingerprint:
            return {}
        table, place = self._table, self._table.find_text(text_key(self._text_fingerprint, caption))
        if place < 0:
            raise DataError(f"The cache {str(self._cache_dir)!r} lacks the caption {printable(caption, 80)!r}.", _RETRY)
        numbers = table.text_shard[place], table.text_position[place], table.text_checksum[place]
        return self._read(len(table.shard) + place, *map(int, numbers))

    def _read(self, slot: int, shard: int, position: int, expected: int) -> Entry:
        kept = self._reader.kept.get(slot)
        return self._reader.keep(slot, self._read_shard(slot, shard, position, expected)) if kept is None else kept

    def _read_shard(self, slot: int, shard: int, position: int, expected: int) -> Entry:
        path = self._paths[shard]
        try:
            entry = self._reader.read(path, position)
        except FileNotFoundError:
            raise cache_file_gone(path) from None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        if not self._checked[slot]:
            if checksum(entry) != expected:
                raise _damaged(path, "checksum mismatch")
            self._checked[slot] = 1
        return entry


class _ShardReader:
    """Open shards, the least recently used of which are closed, and the entries that were read first, up to
    `memory_bytes`: an epoch reads each once, so those that come later would only push out others that come again."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.kept: dict[int, Entry] = {}  # by slot
        self._kept_bytes = 0
        self._shards: OrderedDict[Path, OpenShard] = OrderedDict()

    def keep(self, slot: int, entry: Entry) -> Entry:
        """The entry, a copy in memory if there is room for one."""
        size = sum(tensor.nbytes for tensor in entry.values())
        if self._kept_bytes + size > self.memory_bytes:
            return entry
        self._kept_bytes += size
        self.kept[slot] = {name: tensor.clone() for name, tensor in entry.items()}
        return self.kept[slot]

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
        """The tensors of the entry at `position`; they keep the file mapped.

        Raises KeyError or SafetensorError if it is not there."""
        return {name: self._file.get_tensor(f"{position}.{name}") for name in self._names[position]}


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"The cache file {str(path)!r} is damaged ({why}).",
        "Delete that file and start again (with --resume latest): Tandem then encodes its images again.",
    )
