"""A file of named tensors that is read one tensor at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.finite import ADVICE, is_finite


class TensorFile(ABC):
    """Open for reading, one tensor at a time."""

    path: Path
    names: Sequence[str]
    metadata: Mapping[str, str]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def quantized_as(self) -> str:
        """For messages: in which format the large weights are stored; empty if they are not quantised."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Close the file; tensors that were mapped from it stay."""

    @abstractmethod
    def map(self, name: str) -> Tensor:
        """One tensor on the CPU, mapped into memory unless it is quantised. Raises ConfigError if it is not read."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, without reading it."""

    @abstractmethod
    def stored_dtype(self, name: str) -> torch.dtype:
        """The dtype that `map` returns, without reading the tensor."""

    def read(self, name: str) -> Tensor:
        """As `map`. Raises ConfigError if not all its numbers are finite; of masks, infinity is no fault."""
        tensor = self.map(name)
        if not is_finite(tensor) and ("mask" not in name or bool(tensor.isnan().any())):
            raise ConfigError(
                f"{str(self.path)!r} is damaged: {name!r} contains values that are no finite numbers.", ADVICE
            )
        return tensor


def half_of_quantized(plain: Sequence[torch.dtype]) -> torch.dtype:
    """The dtype in which quantised weights are read, beside others of these dtypes, so that one half-precision format
    is enough for all: bf16, or fp16 if that is what the others are in."""
    return torch.float16 if torch.float16 in plain and torch.bfloat16 not in plain else torch.bfloat16
