"""A GGUF file, whose tensors are mapped into memory if they are plain, and dequantised one by one if not."""

from __future__ import annotations

import importlib.util
import mmap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.model_files.tensor_file import TensorFile, half_of_quantized
from modules.files import FileFault, open_regular, read_gguf_header

PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PIECE: Final = 1 << 20  # weights that a thread dequantises at a time, for each of which there are then 4 bytes
_PIP: Final = "Install it: .venv/bin/python -m pip install gguf"


class GgufFile(TensorFile):
    """A GGUF file open for reading; quantised weights become half precision, computed in fp32 by the package gguf."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be read, or needs the package gguf, which is not installed."""
        self.path = path
        try:
            self._tensors = read_gguf_header(path)
            with open_regular(path) as file:
                # a private mapping, as torch warns of memory that it must not write to
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
        except FileFault as error:
            raise ConfigError(f"{str(path)!r} {error}.", "Copy or download it again.") from error
        self._bytes = np.frombuffer(memory, dtype=np.uint8)
        self.names, self.metadata = list(self._tensors), {}
        self._half = half_of_quantized([PLAIN[each.format] for each in self._tensors.values() if each.format in PLAIN])
        if self.quantized_as and importlib.util.find_spec("gguf") is None:
            raise ConfigError(
                f"{str(path)!r} is in {self.quantized_as}, which needs the package gguf; it is not installed.", _PIP
            )

    @property
    def quantized_as(self) -> str:
        weights: Counter[str] = Counter()
        for each in self._tensors.values():
            weights[each.format] += each.size
        quantized = [name for name, _ in weights.most_common() if name not in PLAIN]
        return "GGUF " + " and ".join(quantized) if quantized else ""

    def close(self) -> None:
        del self._bytes  # the mapping ends with the last tensor

    def map(self, name: str) -> Tensor:
        entry = self._tensors[name]
        data = self._bytes[entry.start : entry.start + entry.size]
        if entry.format in PLAIN:
            if entry.start % PLAIN[entry.format].itemsize:
                data = data.copy()
            return torch.from_numpy(data).view(PLAIN[entry.format]).view(entry.shape)
        quants: Any = importlib.import_module("gguf.quants")
        kind = importlib.import_module("gguf.constants").GGMLQuantizationType[entry.format]
        rows = data.reshape(-1, entry.size // (int(np.prod(entry.shape, dtype=np.int64)) // entry.row))
        weight = torch.empty(len(rows), entry.row, dtype=self._half)
        step = max(1, _PIECE // entry.row)

        def fill(start: int) -> None:
            piece = rows[start : start + step]
            with np.errstate(over="ignore", invalid="ignore"):  # damaged scales show as numbers that are not finite
                weight[start : start + step] = torch.from_numpy(quants.dequantize(piece, kind))

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # numpy computes in one thread
            list(pool.map(fill, range(0, len(rows), step)))
        return weight.view(entry.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def stored_dtype(self, name: str) -> torch.dtype:
        return PLAIN.get(self._tensors[name].format, self._half)
