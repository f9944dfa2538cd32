"""Reading and writing safetensors files one tensor at a time, so that a model need not fit in memory twice.

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
from typing import Final, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.dtypes import DTYPES
from modules.diffusion.hub.files import PICKLES
from modules.files import PARTIAL, open_regular

HASH_KEY: Final = "modelspec.hash_sha256"

_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
# Hashes that sd-webui-additional-networks looks for, as kohya's scripts write them (library/train_util.py,
# precalculate_safetensors_hashes): SHA-256 of the tensors' data, and the first 8 digits of the SHA-256 of 64 KiB of the
# file, from 1 MiB on, as if its metadata had only the `ss_` names.
KOHYA_HASH_KEYS: Final = ("sshs_model_hash", "sshs_legacy_hash")
_LEGACY_RANGE: Final = (0x100000, 0x110000)
# Placeholders: the hashes are known once all tensors are written.
_NO_HASHES: Final = {HASH_KEY: "0x" + "0" * 64, KOHYA_HASH_KEYS[0]: "0" * 64, KOHYA_HASH_KEYS[1]: "0" * 8}


class SafetensorsFile:
    """A safetensors file open for reading, one tensor at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if `path` is missing, truncated or not a safetensors file."""
        self.path = path
        _check_file(path)
        try:
            self._file = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r} is damaged or truncated ({error}).", "Copy or download it again."
            ) from error
        self.names: list[str] = list(self._file.keys())
        self.metadata: dict[str, str] = self._file.metadata() or {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.__exit__(None, None, None)

    def read(self, name: str) -> Tensor:
        """Read one tensor to the CPU, as it is stored."""
        try:
            tensor: Tensor = self._file.get_tensor(name)
        except SafetensorError as error:  # a dtype that safetensors has a name for and torch has not
            raise ConfigError(
                f"{str(self.path)!r}: {name!r} has a number format that cannot be read ({error}).",
                "Use a file in fp32, bf16 or fp16.",
            ) from error
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, without reading it."""
        return tuple(self._file.get_slice(name).get_shape())

    def stored_dtype(self, name: str) -> torch.dtype:
        """The dtype of one tensor, without reading it."""
        stored = self._file.get_slice(name).get_dtype()
        return next((dtype for dtype, known in _NAMES.items() if known == stored), torch.float32)


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
    partial = file.with_name(f"{PARTIAL}{file.name}")
    digest = hashlib.sha256()
    legacy = _LegacyHash(_kohya_header_length(names, tensors, metadata))
    try:
        with partial.open("wb") as out:
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
        partial.replace(file)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # disk full: name the file
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise


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
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
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


def _check_file(path: Path) -> None:
    """Raises ConfigError if the name or the first bytes show that it is not a safetensors file."""
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; give a .safetensors file.")
    if not path.is_file():
        raise ConfigError(f"There is no file {str(path)!r}.")
    with open_regular(path) as file:
        start = file.read(9)
    if not start:
        raise ConfigError(f"{str(path)!r} is empty.", "Copy or download it again.")
    # a safetensors file starts with a length, which may be any 8 bytes, followed by a brace
    if path.suffix.lower() in PICKLES or (start[8:] != b"{" and start[:2] in (b"PK", b"\x80\x02", b"\x80\x04")):
        raise ConfigError(
            f"{str(path)!r} is a pickle (.ckpt, .pt, .bin), which can run arbitrary code, so Tandem does not open it.",
            "Use the .safetensors file of the same model; most download pages offer both.",
        )
    if len(start) < 9 or start[8:9] != b"{":
        raise ConfigError(f"{str(path)!r} is not a safetensors file.", "Give a file that ends in .safetensors.")
