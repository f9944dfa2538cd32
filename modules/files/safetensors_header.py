"""The header of a .safetensors file: the length of a JSON text in 8 bytes, then the text, which says of each tensor its
number format, its shape and where its data are (https://huggingface.co/docs/safetensors, "Format")."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from modules.files.opening import FileFault
from modules.files.reading import decode_json, open_regular
from modules.files.records import Record, validate_record

_MOST_BYTES: Final = 32 << 20  # of the text; published models have at most 2 MB, and nobody waits for more
_DAMAGED: Final = "is damaged or truncated"
_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 63)]  # the product of longer numbers would take seconds


class StoredEntry(Record):
    """What the header says of one tensor: its number format, as F32 or BF16, its shape, and its first byte and the one
    after its last."""

    dtype: str
    shape: Annotated[list[_Count], Field(max_length=1024)]
    data_offsets: Annotated[list[_Count], Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class SafetensorsHeader:
    """The tensors by their names, and the texts beside them."""

    tensors: dict[str, StoredEntry]
    metadata: dict[str, str]


def read_header(file: Path) -> SafetensorsHeader:
    """Raises OSError, or FileFault if `file` is no complete .safetensors file, where the library would refuse it."""
    with open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        start = opened.read(9)
        if start[:4] == b"GGUF":
            raise FileFault("is a GGUF file, which is read of flow-matching transformers and text encoders alone")
        length = int.from_bytes(start[:8], "little")
        if start[8:] != b"{" or not 2 <= length <= min(_MOST_BYTES, size - 8):
            raise FileFault(_DAMAGED)
        return _parsed(start[8:] + opened.read(length - 1), size)


@lru_cache(maxsize=1)  # a model that is stored in 4 bits is read layer by layer, each with the header before it
def _parsed(text: bytes, size: int) -> SafetensorsHeader:
    """The header with this text of a file of `size` bytes."""
    try:
        content = validate_record(dict[str, object], decode_json(text))
        metadata = validate_record(dict[str, str], content.pop("__metadata__", None) or {})
        tensors = validate_record(dict[str, StoredEntry], content)
        "".join((*tensors, *metadata, *metadata.values())).encode()  # half a character that JSON escapes
    except ValueError:
        raise FileFault(_DAMAGED) from None
    end = 0
    for entry in sorted(tensors.values(), key=lambda each: each.data_offsets):
        first, last = entry.data_offsets
        bits = _BITS.get(entry.dtype, math.nan) * math.prod(entry.shape)
        if first != end or bits != 8 * (last - first):
            raise FileFault(_DAMAGED)
        end = last
    if 8 + len(text) + end != size:
        raise FileFault(_DAMAGED)
    return SafetensorsHeader(tensors, metadata)
