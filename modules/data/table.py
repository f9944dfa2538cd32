"""Numpy columns in one safetensors file, read through a memory map: loads at once, and all processes share
its pages."""

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
_META = "tandem"


def write_table(path: Path, columns: Mapping[str, Column], meta: str) -> None:
    """Write the columns and one text atomically; a file that already says the same is left alone. Raises
    OSError."""
    data = save(dict(columns), {_META: meta})
    if _holds(path, data):
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


def map_table(path: Path) -> tuple[dict[str, Column], str]:
    """The columns, read-only, and the text of a file of `write_table`. Raises OSError, or ValueError if
    damaged."""
    size = path.stat().st_size
    if size < 8:
        raise ValueError("too short")
    content = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if start > size:
        raise ValueError("the header is cut off")
    header = json.loads(content[8:start].tobytes())
    meta = header.pop("__metadata__", {}).get(_META, "")
    columns = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        if start + last > size:
            raise ValueError(f"column {name} is cut off")
        dtype = _DTYPES[entry["dtype"]]
        columns[name] = np.frombuffer(content[start + first : start + last], dtype).reshape(entry["shape"])
    return columns, meta


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


class Texts:
    """Many byte strings in two arrays: a blob and where each begins (uint64 [n + 1])."""

    def __init__(self, blob: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        self.blob, self.starts = blob, starts

    @classmethod
    def pack(cls, texts: list[bytes]) -> Texts:
        starts = np.zeros(len(texts) + 1, dtype=np.uint64)
        np.cumsum([len(text) for text in texts], out=starts[1:])
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.blob[int(self.starts[row]) : int(self.starts[row + 1])].tobytes()

    def unpack(self, first: int = 0, last: int | None = None) -> list[bytes]:
        """Those from `first` to before `last`, as a list: far quicker than one by one."""
        starts = self.starts[first : None if last is None else last + 1].tolist()
        base = starts[0]
        blob = self.blob[base : starts[-1]].tobytes()
        return [blob[begin - base : end - base] for begin, end in itertools.pairwise(starts)]
