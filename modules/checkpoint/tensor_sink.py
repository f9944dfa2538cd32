"""The content of a safetensors file on its way to a disk or to another machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from modules.checkpoint.formats.safetensors_file import lazy_tensor, ordered_names, safetensors_header, tensor_bytes
from modules.run.folder.backup_manifest import FileEntry


class TensorSink(Protocol):
    """Where the bytes of a file go."""

    @property
    def entry(self) -> FileEntry: ...
    def add(self, data: memoryview | bytes, /) -> None: ...


def add_tensors(file: TensorSink, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """All of a safetensors file; those of another device are copied one by one. Raises OSError."""
    lazy = {name: lazy_tensor(tensor) for name, tensor in tensors.items()}
    names = ordered_names(lazy)
    file.add(safetensors_header(names, lazy, metadata))
    for name in names:
        file.add(tensor_bytes(name, lazy[name]))
