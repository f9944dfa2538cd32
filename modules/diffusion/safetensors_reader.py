"""Reading a safetensors file one tensor at a time, mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.hub.files import PICKLES
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.facts import GGUF
from modules.files import open_regular, read_header

DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = {
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

_MOST_DIMENSIONS: Final = 64  # with which torch calculates
_MOST_TENSORS: Final = 100_000  # models have thousands; every one of a file without data takes a millisecond to copy


class SafetensorsFile(TensorFile):
    """A safetensors file open for reading, one tensor at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if `path` is missing, unreadable, truncated or not a safetensors file."""
        self.path = path
        try:
            _check_file(path)
            self._header = read_header(path)
            self._file = safe_open(path, framework="pt", device="cpu")
        except OSError as error:
            raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
        except (SafetensorError, ValueError) as error:
            raise ConfigError(f"{str(path)!r} is damaged or truncated.", "Copy or download it again.") from error
        self.names = sorted(self._header.tensors)
        if len(self.names) > _MOST_TENSORS:
            raise ConfigError(f"{str(path)!r} has {len(self.names):,} tensors; the most is {_MOST_TENSORS:,}.")
        self.metadata = dict(self._header.metadata)  # the header is shared

    @property
    def quantized_as(self) -> str:
        return "fp8" * any(entry.dtype.startswith("F8_") for entry in self._header.tensors.values())

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def map(self, name: str) -> Tensor:
        stored = self._header.tensors[name].dtype
        if stored not in DTYPE_NAMES.values():  # torch cannot calculate with it, if it knows it
            raise ConfigError(
                f"{str(self.path)!r}: {name!r} has the number format {stored}, which Tandem does not read.",
                "Use a file in fp32, bf16 or fp16.",
            )
        tensor: Tensor = self._file.get_tensor(name)
        if tensor.dim() > _MOST_DIMENSIONS:
            raise ConfigError(f"{str(self.path)!r} is damaged: {name!r} has {tensor.dim()} dimensions.")
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._header.tensors[name].shape)

    def stored_dtype(self, name: str) -> torch.dtype:
        stored = self._header.tensors[name].dtype
        return next((dtype for dtype, known in DTYPE_NAMES.items() if known == stored), torch.float32)


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
    if path.suffix.lower() == GGUF or start[:4] == b"GGUF":
        raise ConfigError(
            f"{str(path)!r} is a GGUF file, which is read only as a base model or a text encoder, by a name in .gguf.",
            "Use the .safetensors file of the same model, in bf16, fp16 or fp32.",
        )
    if len(start) < 9 or start[8:9] != b"{":
        raise ConfigError(f"{str(path)!r} is not a safetensors file.", "Download it again, or give another file.")
