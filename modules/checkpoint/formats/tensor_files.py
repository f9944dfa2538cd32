"""safetensors files read tensor by tensor and written the same way, so that a model need not fit in memory twice.

The format: 8 bytes with the header's length, the header as JSON, then the tensors' bytes one after the other
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

DTYPES: Final[Mapping[str, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HASH_KEY: Final = "modelspec.hash_sha256"

_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PICKLES: Final = frozenset({".ckpt", ".pt", ".pth", ".bin", ".pkl"})
_NO_HASH: Final = "0x" + "0" * 64  # holds the place of the hash, which is known when all tensors are written


class TensorFile:
    """A safetensors file that is open for reading; tensors come one by one, on the CPU."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError, in words for the user, where `path` is missing, cut short or no safetensors file."""
        self.path = path
        _refuse_what_is_no_safetensors(path)
        try:
            self._file = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r} is damaged or cut short ({error}).", "Copy or download it again, and try again."
            ) from error
        self.names: list[str] = list(self._file.keys())
        self.metadata: dict[str, str] = self._file.metadata() or {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.__exit__(None, None, None)

    def read(self, name: str) -> Tensor:
        """The tensor of this name."""
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape, without reading it."""
        return tuple(self._file.get_slice(name).get_shape())

    def stored_dtype(self, name: str) -> torch.dtype:
        """Its number format, without reading it."""
        stored = self._file.get_slice(name).get_dtype()
        return next((dtype for dtype, known in _NAMES.items() if known == stored), torch.float32)


@dataclass(frozen=True)
class Planned:
    """A tensor that is made when its turn comes: `make` returns it with `shape`, in any number format."""

    shape: tuple[int, ...]
    dtype: torch.dtype  # as it is written
    make: Callable[[], Tensor]


def planned(tensor: Tensor, dtype: torch.dtype | None = None) -> Planned:
    """A tensor that is at hand; numbers with a point are written as `dtype`."""
    chosen = tensor.dtype if dtype is None or not tensor.is_floating_point() else dtype
    return Planned(tuple(tensor.shape), chosen, lambda: tensor)


def write_tensor_file(file: Path, tensors: Mapping[str, Planned], metadata: Mapping[str, str]) -> None:
    """Write `tensors`, one in memory at a time, and put the file in its place when it is complete.

    Where `metadata` has "modelspec.hash_sha256", its value becomes the SHA-256 of the tensors' bytes.
    Raises OSError (full disk, no permission); what was at `file` before then stays.
    """
    # The widest numbers first, as safetensors itself orders them: every tensor then lies on a whole address.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    notes = dict(metadata) | ({HASH_KEY: _NO_HASH} if HASH_KEY in metadata else {})
    header = _header(names, tensors, notes)
    partial = file.with_name(f".partial-{file.name}")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            out.write(header)
            for name in names:
                data = _bytes_of(tensors[name])
                digest.update(data)
                out.write(data)
            if HASH_KEY in notes:
                out.seek(header.index(_NO_HASH.encode()))
                out.write(f"0x{digest.hexdigest()}".encode())
            out.flush()
            os.fsync(out.fileno())
        partial.replace(file)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk: say of which file
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise


def _header(names: list[str], tensors: Mapping[str, Planned], metadata: Mapping[str, str]) -> bytes:
    """The length and the JSON, filled up with spaces to a multiple of eight bytes."""
    described: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    begin = 0
    for name in names:
        tensor = tensors[name]
        end = begin + math.prod(tensor.shape) * tensor.dtype.itemsize
        described[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Planned) -> memoryview:
    made = tensor.make().detach().to("cpu", tensor.dtype).contiguous()
    assert tuple(made.shape) == tensor.shape
    return made.reshape(-1).view(torch.uint8).numpy().data


def _refuse_what_is_no_safetensors(path: Path) -> None:
    """Raises ConfigError for what can be told from the name and the first bytes."""
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name a .safetensors file.")
    if not path.is_file():
        raise ConfigError(f"There is no file {str(path)!r}.")
    with path.open("rb") as file:
        begin = file.read(9)
    if not begin:
        raise ConfigError(f"{str(path)!r} is empty.", "Copy or download it again, and try again.")
    # a safetensors file begins with a length, which may be any bytes, before the brace
    if path.suffix.lower() in _PICKLES or (begin[8:] != b"{" and begin[:2] in (b"PK", b"\x80\x02", b"\x80\x04")):
        raise ConfigError(
            f"{str(path)!r} is a pickle (.ckpt, .pt, .bin): such files can run programs, so Tandem opens none.",
            "Use the .safetensors file of the same model; most download pages offer both.",
        )
    if len(begin) < 9 or begin[8:9] != b"{":
        raise ConfigError(f"{str(path)!r} is not a safetensors file.", "Name a file that ends in .safetensors.")
