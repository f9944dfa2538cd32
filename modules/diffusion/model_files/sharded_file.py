"""The shards that an index (*.safetensors.index.json) names, as one file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.diffusion.safetensors_reader import SafetensorsFile
from modules.files import FileFault, printable, weight_map

_MOST_SHARDS = 1000


class ShardedFile(TensorFile):
    """All shards of an index, which lie beside it, open for reading."""

    def __init__(self, index: Path) -> None:
        """Raises ConfigError if the index or a shard cannot be read, or a shard lacks a tensor that it should have."""
        self.path = index
        try:
            file_of = weight_map(index)
        except (OSError, FileFault) as error:
            reason = error if isinstance(error, FileFault) else f"cannot be read ({error.strerror})"
            raise ConfigError(f"{str(index)!r} {reason}.", "Copy or download it again.") from error
        shards = sorted(set(file_of.values()))
        if len(shards) > _MOST_SHARDS:
            raise ConfigError(f"{str(index)!r} names {len(shards):,} files; the most is {_MOST_SHARDS:,}.")
        if missing := [name for name in shards if not (index.parent / name).is_file()]:
            raise ConfigError(
                f"{str(index)!r} names {missing[0]!r}, which is not beside it.", "Copy or download the missing file."
            )
        with ExitStack() as opening:
            opened = {name: opening.enter_context(SafetensorsFile(index.parent / name)) for name in shards}
            own = {name: set(file.names) for name, file in opened.items()}
            if lost := next((name for name, file in file_of.items() if name not in own[file]), None):
                raise ConfigError(
                    f"{str(index)!r} says that {file_of[lost]} has {printable(lost, 200)!r}, which it has not.",
                    "Copy or download the files again.",
                )
            self._stack = opening.pop_all()
        self._files = {name: opened[file] for name, file in file_of.items()}
        self.names = list(file_of)
        self.metadata = {key: value for file in opened.values() for key, value in file.metadata.items()}

    @property
    def quantized_as(self) -> str:
        return next((file.quantized_as for file in set(self._files.values()) if file.quantized_as), "")

    def close(self) -> None:
        self._stack.close()

    def map(self, name: str) -> Tensor:
        return self._files[name].map(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[name].shape(name)

    def stored_dtype(self, name: str) -> torch.dtype:
        return self._files[name].stored_dtype(name)
