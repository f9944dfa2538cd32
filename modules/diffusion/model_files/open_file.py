"""Opening a model file of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.diffusion.model_files.gguf_file import GgufFile
from modules.diffusion.model_files.scaled_file import ScaledFile
from modules.diffusion.model_files.sharded_file import ShardedFile
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.diffusion.safetensors_reader import SafetensorsFile
from modules.facts import FILE_INDEX, GGUF


def open_model_file(path: Path) -> TensorFile:
    """The file, with scales and all else that its quantisation needs applied, and so not among its names.

    Raises ConfigError if it is missing, damaged, of another kind or quantised in a way that is not read.
    """
    if path.suffix.lower() == GGUF:
        return GgufFile(path)
    source = ShardedFile(path) if path.name.lower().endswith(FILE_INDEX) else SafetensorsFile(path)
    try:
        return ScaledFile(source) if ScaledFile.has_scales(source) else source
    except BaseException:
        source.close()
        raise


def shapes_of_file(path: Path) -> Mapping[str, list[int]]:
    """The shapes of all tensors, by name. Raises ConfigError as `open_model_file`."""
    with open_model_file(path) as source:
        return {name: [*source.shape(name)] for name in source.names}
