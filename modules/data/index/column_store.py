"""Numpy columns in one safetensors file, read through a memory map: loads instantly, and processes share its pages."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

Column: TypeAlias = NDArray[np.generic]

_DTYPES = {"U8": np.uint8, "U64": np.uint64, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}
_HEADER_KEY = "tandem"


def write_columns(path: Path, columns: Mapping[str, Column], header: str) -> None:
    """Write columns and header text atomically; a file with the same content is left alone. Raises OSError."""
    data = save(dict(columns), {_HEADER_KEY: header})
    if _has_content(path, data):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def map_columns(path: Path) -> tuple[dict[str, Column], str]:
    """The columns (read-only) and header text that `write_columns` stored. Raises OSError, or ValueError if damaged."""
    size = path.stat().st_size
    if size < 8:
        raise ValueError("too short")
    content = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if start > size:
        raise ValueError("the header is cut off")
    entries = json.loads(content[8:start].tobytes())
    header = entries.pop("__metadata__", {}).get(_HEADER_KEY, "")
    columns = {}
    for name, entry in entries.items():
        first, last = entry["data_offsets"]
        if start + last > size:
            raise ValueError(f"column {name} is cut off")
        dtype = _DTYPES[entry["dtype"]]
        columns[name] = np.frombuffer(content[start + first : start + last], dtype).reshape(entry["shape"])
    return columns, header


def _has_content(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
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

    def unpack(self, first: int = 0, last: int | None = None) -> list[bytes]:
        """The strings `first` to `last` (exclusive) as a list: far faster than one by one."""
        starts = self.starts[first : None if last is None else last + 1].tolist()
        base = starts[0]
        blob = self.blob[base : starts[-1]].tobytes()
        return [blob[start - base : end - base] for start, end in itertools.pairwise(starts)]
