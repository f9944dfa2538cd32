"""Numpy columns in one safetensors file, read through a memory map: loads instantly, and processes share its pages."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from modules.files import FileFault, decode_json, file_size, open_for_writing, open_regular, replacing

Column: TypeAlias = NDArray[np.generic]

_DTYPES = {
    "U8": np.uint8,
    "U32": np.uint32,
    "U64": np.uint64,
    "I32": np.int32,
    "I64": np.int64,
    "F64": np.float64,
    "BOOL": np.bool_,
}
_HEADER_KEY = "tandem"
_LARGEST_HEADER = 256 << 20  # bytes; an index lists its problems there


def write_columns(path: Path, columns: Mapping[str, Column], header: str) -> None:
    """Write columns and header text atomically; a file with the same content is left alone. Raises OSError."""
    data = pack_columns(columns, header)
    if has_content(path, data):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, os.fdopen(open_for_writing(partial), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def pack_columns(columns: Mapping[str, Column], header: str) -> bytes:
    """The file that holds these columns and the header text."""
    return save(dict(columns), {_HEADER_KEY: header})


def map_columns(path: Path) -> tuple[dict[str, Column], str]:
    """The columns (read-only) and header text that `write_columns` stored. Raises OSError, or ValueError if damaged."""
    size = file_size(path)
    if size < 8:
        raise ValueError("too short")
    content = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if start > min(size, _LARGEST_HEADER):
        raise ValueError("the header is cut off")
    try:
        entries = dict(decode_json(content[8:start].tobytes()))  # type: ignore[call-overload]
        header = str(entries.pop("__metadata__", {}).get(_HEADER_KEY, ""))
        return {str(name): _column(content[start:], entry) for name, entry in entries.items()}, header
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"the header is wrong: {type(error).__name__} {error}") from error


def _column(data: Column, entry: Mapping[str, Any]) -> Column:
    first, last = entry["data_offsets"]
    if not 0 <= first <= last <= len(data):
        raise ValueError("a column is cut off")
    column: Column = np.frombuffer(data[first:last], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return column


def has_content(path: Path, data: bytes) -> bool:
    """Whether a file holds these bytes."""
    try:
        with open_regular(path) as file:
            return os.fstat(file.fileno()).st_size == len(data) and file.read() == data
    except (OSError, FileFault):
        return False


class StringColumn:
    """Byte strings in two arrays: all bytes (uint8) and the offset of each string (uint64 [n + 1])."""

    def __init__(self, blob: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        self.blob, self.starts = blob, starts

    @classmethod
    def pack(cls, texts: list[bytes]) -> StringColumn:
        """The column of these strings."""
        starts = np.zeros(len(texts) + 1, dtype=np.uint64)
        np.cumsum([len(text) for text in texts], out=starts[1:])
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.blob[int(self.starts[row]) : int(self.starts[row + 1])].tobytes()

    def joined(self) -> bytes:
        """All strings with a zero byte between them; `unpack` takes several times the memory."""
        return np.insert(self.blob, self.starts[1:-1].astype(np.int64), 0).tobytes()

    def unpack(self, first: int = 0, last: int | None = None) -> list[bytes]:
        """The strings `first` to `last` (exclusive) as a list: far faster than one by one."""
        starts = self.starts[first : None if last is None else last + 1].tolist()
        base = starts[0]
        blob = self.blob[base : starts[-1]].tobytes()
        return [blob[start - base : end - base] for start, end in itertools.pairwise(starts)]
