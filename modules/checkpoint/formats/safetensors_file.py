"""Writing safetensors files one tensor at a time, so that a model need not fit in memory twice.

The format: the length of the header in 8 bytes, the header as JSON, then the data of all tensors
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.dtypes import DTYPES
from modules.diffusion.safetensors_reader import DTYPE_NAMES, SafetensorsFile
from modules.files import open_for_writing, replacing

__all__ = [
    "HASH_KEY",
    "KOHYA_HASH_KEYS",
    "LazyTensor",
    "SafetensorsFile",
    "lazy_tensor",
    "ordered_names",
    "safetensors_header",
    "tensor_bytes",
    "write_safetensors",
]

HASH_KEY: Final = "modelspec.hash_sha256"

# Hashes that sd-webui-additional-networks looks for, as kohya's scripts write them (library/train_util.py,
# precalculate_safetensors_hashes): SHA-256 of the tensors' data, and the first 8 digits of the SHA-256 of 64 KiB of the
# file, from 1 MiB on, as if its metadata had only the `ss_` names.
KOHYA_HASH_KEYS: Final = ("sshs_model_hash", "sshs_legacy_hash")
_LEGACY_RANGE: Final = (0x100000, 0x110000)
# Placeholders: the hashes are known once all tensors are written.
_NO_HASHES: Final = {HASH_KEY: "0x" + "0" * 64, KOHYA_HASH_KEYS[0]: "0" * 64, KOHYA_HASH_KEYS[1]: "0" * 8}


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is created when it is written: `make` returns it with `shape`, in any dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype  # in the file
    make: Callable[[], Tensor]


def lazy_tensor(tensor: Tensor, dtype: torch.dtype | None = None) -> LazyTensor:
    """An existing tensor, written as `dtype` if it is floating point."""
    chosen = tensor.dtype if dtype is None or not tensor.is_floating_point() else dtype
    return LazyTensor(tuple(tensor.shape), chosen, lambda: tensor)


def write_safetensors(file: Path, tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str]) -> None:
    """Write `tensors`, one in memory at a time, and replace `file` once the new one is complete.

    Raises ConfigError if a number becomes infinite or NaN in the dtype of the file, such as 1e5 in fp16.
    The values of "modelspec.hash_sha256" and of KOHYA_HASH_KEYS, if `metadata` contains them, become those hashes.
    Raises OSError (disk full, no permission); an existing file then stays.
    """
    names = ordered_names(tensors)
    hashed = {name: empty for name, empty in _NO_HASHES.items() if name in metadata}
    header = safetensors_header(names, tensors, {"format": "pt", **metadata, **hashed})
    digest = hashlib.sha256()
    legacy = _LegacyHash(_kohya_header_length(names, tensors, metadata))
    with replacing(file) as partial, os.fdopen(open_for_writing(partial), "wb") as out:
        out.write(header)
        for name in names:
            data = tensor_bytes(name, tensors[name])
            digest.update(data)
            legacy.update(data)
            out.write(data)
        values = (f"0x{digest.hexdigest()}", digest.hexdigest(), legacy.hexdigest())
        for name, value in zip(_NO_HASHES, values, strict=True):
            if name in hashed:
                key = f'"{name}":"'.encode()  # within a text its quotes would be escaped
                out.seek(header.index(key) + len(key))
                out.write(value.encode())
        out.flush()
        os.fsync(out.fileno())


def ordered_names(tensors: Mapping[str, LazyTensor]) -> list[str]:
    """The widest dtype first, as safetensors itself does, so that every tensor is aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def safetensors_header(names: list[str], tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str]) -> bytes:
    """The length and the JSON, padded with spaces to a multiple of 8 bytes."""
    content = _header_content(names, tensors, metadata)
    if not metadata:
        del content["__metadata__"]
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _kohya_header_length(names: list[str], tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str]) -> int:
    """The length of the header that the safetensors library would write for the `ss_` names alone, in UTF-8."""
    own = {name: value for name, value in metadata.items() if name.startswith("ss_")}
    content = _header_content(names, tensors, own)
    length = len(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))
    return 8 + length + -length % 8


def _header_content(
    names: list[str], tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str]
) -> dict[str, object]:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    return header


class _LegacyHash:
    """Of the bytes in _LEGACY_RANGE of a file whose data start at `position`."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.digest = hashlib.sha256()

    def update(self, data: memoryview) -> None:
        """Add the next bytes of the file."""
        start, end = (max(0, limit - self.position) for limit in _LEGACY_RANGE)
        self.digest.update(data[start:end])
        self.position += len(data)

    def hexdigest(self) -> str:
        """The first 8 digits."""
        return self.digest.hexdigest()[:8]


def tensor_bytes(name: str, tensor: LazyTensor) -> memoryview:
    """The data as they are in the file. Raises ConfigError if a number cannot be held in the dtype of the file."""
    made = tensor.make().detach().to("cpu")
    assert tuple(made.shape) == tensor.shape
    written = made.to(tensor.dtype).contiguous()
    if made.dtype != written.dtype and made.is_floating_point() and made.dtype.itemsize > 1:
        _check_range(name, made, written)
    return written.reshape(-1).view(torch.uint8).numpy().data


def _check_range(name: str, made: Tensor, written: Tensor) -> None:
    """Raises ConfigError if a finite number of `made` is none in `written`, which has another dtype."""
    wide = written.float() if written.dtype.itemsize == 1 else written  # torch has no isfinite for fp8
    if bool(wide.isfinite().all()) or not bool((made.isfinite() & ~wide.isfinite()).any()):
        return
    dtype = next((short for short, each in DTYPES.items() if each == written.dtype), str(written.dtype))
    largest = made[made.isfinite()].abs().max()
    raise ConfigError(
        f"{name!r} has numbers up to {float(largest):.3g}, and the largest that {dtype} can hold is "
        f"{torch.finfo(written.dtype).max:.6g}.",
        "Use bf16 or fp32.",
    )
