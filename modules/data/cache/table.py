"""Where the views and captions of an index lie in a cache folder: a table that one process makes and all map."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modules.config import DataError
from modules.data.cache.manifest import SHARD_PATTERN
from modules.data.index.column_store import Column, map_columns, write_columns
from modules.files import decode_json, printable, validate_record

_PATTERN: Final = "views-*.safetensors"
_NAME: Final = re.compile(r"views-[0-9a-f]{32}\.safetensors")
_KEPT: Final = 8
_COLUMNS: Final = {  # in the order of CacheTable
    "first": np.int64,
    **dict.fromkeys(("shard", "position"), np.int32),
    "checksum": np.uint32,
    **dict.fromkeys(("usable", "done"), np.bool_),
    **dict.fromkeys(("contents", "hashes", "text_high", "text_low"), np.uint64),
    "text_row": np.int64,
    **dict.fromkeys(("text_shard", "text_position"), np.int32),
    "text_checksum": np.uint32,
}


@dataclass(frozen=True)
class TableHeader:
    """What the table stores besides its columns; JSON in the file, so the names are part of the format."""

    shards: tuple[Annotated[str, Field(pattern=rf"^rank-[^/\\]{{1,100}}/{SHARD_PATTERN}$")], ...]
    reasons: dict[int, str]  # row -> why it could not be encoded
    index: str  # Index.digest


@dataclass(frozen=True)
class CacheTable:
    """The columns are arrays, read-only memory maps if it comes from a file; -1 is the shard of what is not cached.

    Those of captions have one row for each different caption, sorted by the halves of its key.
    """

    header: TableHeader
    first: NDArray[np.int64]  # [rows + 1], the slot of each row's view 0; slots count the views of all rows
    shard: NDArray[np.int32]  # [slots], number in the list of shards
    position: NDArray[np.int32]  # [slots], in the shard
    checksum: NDArray[np.uint32]  # [slots]
    usable: NDArray[np.bool_]  # [rows], all of its views and captions are cached
    done: NDArray[np.bool_]  # [rows], all of its views are cached, or its file is known to be bad
    contents: NDArray[np.uint64]  # [rows], a hash of the image file and of its references; 0 if it was not read
    hashes: NDArray[np.uint64]  # [rows], of path, contents, caption and use; 0 if the row is not usable
    text_high: NDArray[np.uint64]  # [captions]
    text_low: NDArray[np.uint64]  # [captions]
    text_row: NDArray[np.int64]  # [captions], the first row that has it
    text_shard: NDArray[np.int32]  # [captions]
    text_position: NDArray[np.int32]  # [captions]
    text_checksum: NDArray[np.uint32]  # [captions]
    path: Path | None = None

    @staticmethod
    def name(made_from: bytes) -> str:
        """The file name of a table that is made from this: another content has another name."""
        return _PATTERN.replace("*", hashlib.sha256(made_from).hexdigest()[:32])

    @classmethod
    def map(cls, path: Path) -> CacheTable:
        """The table in a file, mapped into memory. Raises OSError or ValueError if it is none."""
        if not _NAME.fullmatch(path.name):
            raise ValueError("another name than those of tables")
        columns, text = map_columns(path)
        header = validate_record(TableHeader, decode_json(text))
        table = cls(header, **_checked(columns), path=path)  # type: ignore[arg-type]
        for shard in (table.shard, table.text_shard):
            if len(shard) and not -1 <= int(shard.min()) <= int(shard.max()) < len(table.header.shards):
                raise ValueError("a number is out of range")
        return table

    def __reduce__(self) -> tuple[Callable[..., CacheTable], tuple[object, ...]]:
        # Spawned loader workers map the file again instead of receiving a copy of the table.
        columns = [getattr(self, name) for name in _COLUMNS]
        return (CacheTable, (self.header, *columns)) if self.path is None else (_mapped, (self.path,))

    def store(self, path: Path) -> None:
        """Write it, and remove those that no run has started with for longest. Raises OSError."""
        write_columns(path, {name: getattr(self, name) for name in _COLUMNS}, json.dumps(asdict(self.header)))
        for other in sorted(path.parent.glob(_PATTERN), key=_mtime, reverse=True)[_KEPT:]:
            with suppress(OSError):  # on Windows another run may have it open
                other.unlink()

    def reason(self, row: int) -> str:
        """Why a row is not usable, for the list of problems."""
        return printable(self.header.reasons.get(row, "skipped: it was not encoded; the next start retries it"), 500)

    def find_text(self, key: bytes) -> int:
        """The row of a caption by its key, or -1."""
        high, low = split_key(key)
        place = int(np.searchsorted(self.text_high, np.uint64(high)))
        while place < len(self.text_high) and self.text_high[place] == high:
            if self.text_low[place] == low:
                return place
            place += 1
        return -1


def split_key(key: bytes) -> tuple[int, int]:
    """The halves of a key of 16 bytes as numbers."""
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def _mapped(path: Path) -> CacheTable:
    try:
        return CacheTable.map(path)
    except (OSError, ValueError):
        raise cache_file_gone(path) from None


def _checked(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Raises ValueError unless these are the columns of one table; a cache folder may come from somebody else."""
    for name, dtype in _COLUMNS.items():
        if name not in columns or columns[name].dtype != dtype or columns[name].ndim != 1:
            raise ValueError(f"its column {name} has another type")
    first, rows, slots, texts = (columns["first"], *(len(columns[n]) for n in ("usable", "shard", "text_high")))
    lengths = {**dict.fromkeys(("usable", "done", "contents", "hashes"), rows), "first": rows + 1}
    for name in _COLUMNS:
        if len(columns[name]) != lengths.get(name, texts if name.startswith("text_") else slots):
            raise ValueError(f"its column {name} has another length")
    if first[0] != 0 or first[-1] != slots or bool((np.diff(cast("NDArray[np.int64]", first)) < 1).any()):
        raise ValueError("its column first is not ascending")
    high, row = (cast("NDArray[np.int64]", columns[name]) for name in ("text_high", "text_row"))
    if bool((high[1:] < high[:-1]).any()):
        raise ValueError("its captions are not sorted")
    if texts and not 0 <= int(row.min()) <= int(row.max()) < rows:
        raise ValueError("its column text_row has a number out of range")
    return {name: columns[name] for name in _COLUMNS}


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # another run may remove old tables at the same time
        return 0


def cache_file_gone(path: Path) -> DataError:
    """What to raise if a file of the cache folder that was there is not any more."""
    folder = next((each for each in reversed(path.parents) if not each.exists()), None)
    what = f"file {str(path)!r}" if folder is None else f"folder {str(folder)!r}"
    return DataError(
        f"The cache {what} is gone: it was removed during the run, or its disk is not mounted any more.",
        "Bring the disk back if that is the cause, and start again with --resume latest: Tandem encodes again what is "
        "missing.",
    )
