"""Tensors on disk: safetensors files, written without a second copy of what already lies well in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`, live ones too, which must not change meanwhile. Raises OSError or SafetensorError."""
    ready: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        flat = on_disk(tensor)
        storage = flat.untyped_storage().data_ptr()
        ready[name] = flat.clone() if storage in storages else flat  # safetensors refuses tied weights
        storages.add(storage)
    save_file(ready, file)


def on_disk(tensor: Tensor) -> Tensor:
    """The tensor as safetensors wants it: on the CPU, contiguous; a copy only where it is not so already."""
    return tensor.detach().cpu().contiguous()
