"""The tensors of a backup as its files hold them, whole or divided into parts: only the rows asked for are read."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Annotated, Any, Final, NamedTuple

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modules.config import ResumeError
from modules.files import FileFault, decode_json, printable, validate_record

_ROWS: Final = "rows"  # in the metadata of a part
_LARGE_BYTES: Final = 1 << 20
_Pair = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 53)]], Field(min_length=2, max_length=2)]
_FAULTS: Final = (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError)


class ShardRows(NamedTuple):
    """Where the rows of a shard are: the full tensor is divided along its first dimension."""

    first: int
    total: int  # of the full tensor


@dataclass(frozen=True)
class Shard:
    """Which part of a sharded state the tensors of one rank are."""

    index: int  # the rank
    count: int  # of parts
    rows: Mapping[str, Mapping[str, ShardRows]]  # by kind and name; what is not named is whole, and in this part alone
    ticket: int = 0  # the same on all ranks for the parts of one backup, another one for each backup of a process

    def metadata(self, kind: str, step: int) -> dict[str, str]:
        """For the header of the file of this part and kind; lists what `stored_tensors` checks."""
        rows = json.dumps({name: list(rows) for name, rows in self.rows.get(kind, {}).items()})
        return {
            "kind": kind,
            "part": str(self.index + 1),
            "parts": str(self.count),
            "step": str(step),
            _ROWS: rows,
        }


@dataclass(frozen=True)
class _StoredShard:
    """What one file holds of a tensor."""

    file: Path
    opened: Any  # safetensors' class, which has no types
    name: str
    shape: tuple[int, ...]
    dtype: str
    rows: ShardRows | None  # None: the whole

    @property
    def first(self) -> int:
        return 0 if self.rows is None else self.rows.first

    @property
    def stop(self) -> int:
        return self.first + self.shape[0]

    def read(self, rows: slice | EllipsisType) -> Tensor:
        """Some of its own rows, or all of it. Raises ResumeError."""
        try:
            found: Tensor = self.opened.get_slice(self.name)[rows]
        except _FAULTS as error:
            raise ResumeError(f"{self.file} is damaged: {printable(error, 200)}.") from None
        return found


class StoredTensor:
    """A tensor of a backup: `[...]` reads all of it, `[a:b]` only these rows, from the files that have them."""

    def __init__(self, pieces: Sequence[_StoredShard]) -> None:
        """`pieces` follow each other without a gap."""
        first = pieces[0]
        self._pieces = pieces
        self.shape = torch.Size(first.shape if first.rows is None else (first.rows.total, *first.shape[1:]))

    def __getitem__(self, rows: slice | EllipsisType) -> Tensor:
        """On the CPU; it may be mapped from the file. Raises ResumeError."""
        if self._pieces[0].rows is None:
            return self._pieces[0].read(rows)
        start, stop, _ = (slice(None) if rows is ... else rows).indices(self.shape[0])
        inside = [(max(start, piece.first), min(stop, piece.stop), piece) for piece in self._pieces]
        found = [
            (first, piece.read(slice(first - piece.first, last - piece.first)))
            for first, last, piece in inside
            if first < last
        ]
        if len(found) == 1:
            return found[0][1]
        read = [shard for _, shard in found] or [self._pieces[0].read(slice(0, 0))]
        return _joined(read)


def _joined(shards: Sequence[Tensor]) -> Tensor:
    """All rows. Large ones in memory of their own, which returns to the system at once: among what a restored optimizer
    keeps it would leave holes in the heap (measured: 901 MiB for moments of 366)."""
    size = sum(shard.numel() * shard.element_size() for shard in shards)
    if size < _LARGE_BYTES:
        return torch.cat(list(shards))
    memory = torch.frombuffer(mmap.mmap(-1, size), dtype=shards[0].dtype)
    rows = sum(len(shard) for shard in shards)
    return torch.cat(list(shards), out=memory.reshape(rows, *shards[0].shape[1:]))


def stored_tensors(files: Sequence[Path], step: int | None) -> dict[str, StoredTensor]:
    """The tensors of one kind by name. `files` is one file, or in their order the parts of a backup of this `step`.

    Raises ResumeError if a file is damaged, or if the parts do not make up whole tensors.
    """
    pieces: dict[str, list[_StoredShard]] = {}
    for index, file in enumerate(files):
        for piece in _pieces(file, None if step is None else (index, len(files), step)):
            pieces.setdefault(piece.name, []).append(piece)  # in the order of ranks, and so of rows
    found = {}
    for name, each in pieces.items():
        if fault := _fault(each):
            raise ResumeError(f"{files[0].parent} is damaged: {printable(name, 80)!r} {fault}.")
        found[name] = StoredTensor(each)
    return found


def _pieces(file: Path, part: tuple[int, int, int] | None) -> Iterable[_StoredShard]:
    """What a file holds; `part` is its index, the number of parts and the step, None if it is the only file."""
    try:
        opened = safe_open(file, framework="pt", device="cpu")
        metadata: dict[str, str] = opened.metadata() or {}
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
        shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
        dtypes = {name: str(each.get_dtype()) for name, each in slices.items()}
    except _FAULTS as error:
        raise ResumeError(f"{file} is damaged: {printable(error, 200)}.") from None
    rows = {} if part is None else _rows(file, metadata, *part)
    if unknown := sorted(rows.keys() - shapes.keys()):
        raise ResumeError(f"{file} is damaged: it has no {printable(unknown[0], 80)!r}, whose rows it names.")
    return [_StoredShard(file, opened, name, shape, dtypes[name], rows.get(name)) for name, shape in shapes.items()]


def _rows(file: Path, metadata: Mapping[str, str], index: int, count: int, step: int) -> dict[str, ShardRows]:
    """Which rows the tensors of a part are."""
    kind = file.name.partition("-")[0]
    for name, expected in (("kind", kind), ("part", index + 1), ("parts", count), ("step", step)):
        if metadata.get(name) != str(expected):
            found = printable(metadata.get(name, "missing"), 40)
            raise ResumeError(f"{file} does not belong to this backup: its {name} is {found} instead of {expected}.")
    try:
        pairs = validate_record(dict[str, _Pair], decode_json(metadata.get(_ROWS, "")))
    except FileFault as fault:
        raise ResumeError(f"{file} is damaged: the list of rows in its header {fault}.") from None
    return {name: ShardRows(*pair) for name, pair in pairs.items()}


def _fault(pieces: Sequence[_StoredShard]) -> str:
    """Why these are not the parts of one tensor; empty if they are."""
    if len(pieces) > 1 and any(piece.rows is None for piece in pieces):
        return "is in several parts, and one of them has it as a whole"
    if pieces[0].rows is None:
        return ""
    if not all(piece.shape for piece in pieces):
        return "is a single number, but has rows"
    total = pieces[0].rows.total
    if len({(piece.dtype, piece.shape[1:], piece.rows and piece.rows.total) for piece in pieces}) > 1:
        return "has another shape or type in one part than in another"
    end = 0
    for piece in pieces:
        if piece.first != end:
            return f"has rows from {piece.first} on in a part, after the part that ends before row {end}"
        end = piece.stop
    return "" if end == total else f"has {end} rows in all parts, and {total} in the list of rows"
