"""The header of a GGUF file: which tensors it has, in which format and where; read without the package gguf.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the files are those of ComfyUI-GGUF (tools/convert.py), which
keeps the names of the original and notes in `comfy.gguf.orig_shape.NAME` what it had to reshape.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.files.display import printable
from modules.files.opening import FileFault
from modules.files.reading import open_regular

# The number of a format -> its name, and how many weights are a block of how many bytes (ggml/src/ggml-common.h).
GGUF_FORMATS: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
}
_NUMBERS: Final = "BbHhIif?"  # the types 0 to 7 of metadata, as struct has them
_STRING, _ARRAY = 8, 9
_WIDE: Final = {10: "Q", 11: "q", 12: "d"}
_MOST_TENSORS: Final = 100_000
_MOST_FIELDS: Final = 10_000
_MOST_ITEMS: Final = 1 << 20  # of a list of texts: a tokenizer's tokens
_MOST_HEADER: Final = 64 << 20  # bytes; with a tokenizer some MiB
_LONGEST_TEXT: Final = 1 << 20  # bytes; a chat template has some KiB
_LONGEST_NAME: Final = 1000
_MOST_DIMENSIONS: Final = 4
_ORIGINAL_SHAPE: Final = "comfy.gguf.orig_shape."
_LONGEST_SHAPE: Final = 8


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is in its file, and what."""

    format: str
    shape: tuple[int, ...]  # of the model, so the other way round than in the file
    row: int  # weights that are stored together: the length of the last dimension in the file
    start: int  # bytes from the beginning of the file
    size: int  # bytes


def read_gguf_header(path: str | Path) -> dict[str, GgufTensor]:
    """The tensors by name. Raises OSError, or FileFault if the file is damaged."""
    with open_regular(path) as file:
        end = os.fstat(file.fileno()).st_size
        return _Header(file).read(end)


class _Header:
    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._left = _MOST_HEADER

    def read(self, end: int) -> dict[str, GgufTensor]:
        """Of a file of `end` bytes."""
        if self._bytes(4) != b"GGUF":
            raise FileFault("is not a GGUF file: it does not begin as one")
        version, tensors, fields = self._numbers("<IQQ")
        if version not in (2, 3):
            raise FileFault(f"is of version {version} of GGUF, or big-endian; versions 2 and 3 are read")
        if tensors > _MOST_TENSORS or fields > _MOST_FIELDS:
            raise FileFault(
                f"is damaged: it says that it has {tensors:,} tensors and {fields:,} metadata; the most are "
                f"{_MOST_TENSORS:,} and {_MOST_FIELDS:,}"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        alignment = 32
        for _ in range(fields):
            name, (kind,) = self._text(_LONGEST_NAME), self._numbers("<I")
            value = self._value(kind, keep=name.startswith(_ORIGINAL_SHAPE))
            if name.startswith(_ORIGINAL_SHAPE) and isinstance(value, tuple):
                shapes[name.removeprefix(_ORIGINAL_SHAPE)] = value
            elif name == "general.alignment" and isinstance(value, int):
                alignment = value
        if not (8 <= alignment <= 1 << 20 and alignment & (alignment - 1) == 0):
            raise FileFault(f"is damaged: its alignment is {alignment}, not a power of two from 8")
        found = [self._tensor() for _ in range(tensors)]
        start = self._file.tell()
        start += -start % alignment
        placed = {name: self._placed(name, place, shapes.get(name), start, end) for name, place in self._unique(found)}
        if (total := sum(tensor.size for tensor in placed.values())) > max(0, end - start):
            raise FileFault(f"is damaged: its tensors have {total:,} bytes, and the file has {end - start:,} for them")
        return placed

    def _tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        """Name, and sides as in the file, number of the format, and bytes after the header."""
        name, (dimensions,) = self._text(_LONGEST_NAME), self._numbers("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise FileFault(f"is damaged: {printable(name, 100)!r} has {dimensions} dimensions")
        sides = self._numbers(f"<{dimensions}Q")
        kind, offset = self._numbers("<IQ")
        return name, (sides, kind, offset)

    @staticmethod
    def _unique(
        found: list[tuple[str, tuple[tuple[int, ...], int, int]]],
    ) -> list[tuple[str, tuple[tuple[int, ...], int, int]]]:
        if len({name for name, _ in found}) < len(found):
            raise FileFault("is damaged: it has two tensors of one name")
        return found

    @staticmethod
    def _placed(
        name: str, place: tuple[tuple[int, ...], int, int], shape: tuple[int, ...] | None, start: int, end: int
    ) -> GgufTensor:
        sides, kind, offset = place
        label = repr(printable(name, 100))
        if kind not in GGUF_FORMATS:
            read = ", ".join(each for each, _, _ in GGUF_FORMATS.values())
            raise FileFault(f"has {label} in the format {kind} of GGUF; Tandem reads {read}")
        format_name, block, block_bytes = GGUF_FORMATS[kind]
        count = math.prod(sides)
        if not count or sides[0] % block:
            raise FileFault(f"is damaged: {label} has the sides {[*sides]}, which {format_name} cannot have")
        size = count // block * block_bytes
        if start + offset + size > end:
            raise FileFault(f"is damaged or truncated: {label} ends at the byte {start + offset + size:,} of {end:,}")
        if shape is not None and (
            math.prod(shape) != count or len(shape) > _LONGEST_SHAPE or any(side < 1 for side in shape)
        ):
            raise FileFault(f"is damaged: {label} with the sides {[*sides]} cannot have had the shape {[*shape][:8]}")
        return GgufTensor(format_name, shape or sides[::-1], sides[0], start + offset, size)

    def _value(self, kind: int, *, keep: bool = False) -> object:
        """A number; of a list only its whole numbers, if they are to be kept, and of a text nothing."""
        if kind == _STRING:
            self._text(_LONGEST_TEXT)
            return None
        if (form := self._form(kind)) is not None:
            return self._numbers(f"<{form}")[0]
        if kind != _ARRAY:
            raise FileFault(f"is damaged: its metadata have a value of the type {kind}")
        item, count = self._numbers("<IQ")
        if item == _STRING:
            if count > _MOST_ITEMS:
                raise FileFault(f"is damaged: its metadata have a list of {count:,} texts; the most is {_MOST_ITEMS:,}")
            for _ in range(count):
                self._bytes(self._numbers("<Q")[0])
            return None
        if (form := self._form(item)) is None:
            raise FileFault(f"is damaged: its metadata have a list of the type {item}")
        data = self._bytes(count * struct.calcsize(f"<{form}"))
        return struct.unpack(f"<{count}{form}", data) if keep and count <= _LONGEST_SHAPE and form in "Iiq" else None

    @staticmethod
    def _form(kind: int) -> str | None:
        return _NUMBERS[kind] if kind < len(_NUMBERS) else _WIDE.get(kind)

    def _text(self, limit: int) -> str:
        (length,) = self._numbers("<Q")
        if length > limit:
            raise FileFault(f"is damaged: its header has a text of {length:,} bytes; the most is {limit:,}")
        return self._bytes(length).decode("utf-8", "replace")

    def _numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, count: int) -> bytes:
        if count > self._left:
            raise FileFault(f"is damaged: its header has more than {_MOST_HEADER >> 20} MiB")
        self._left -= count
        data = self._file.read(count)
        if len(data) < count:
            raise FileFault("is truncated: it ends in its header")
        return data
