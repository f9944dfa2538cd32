"""The torch dtype of the weights in .safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from modules.diffusion.base_model_files import stored_formats

SAFETENSORS_HALF: Final[Mapping[str, torch.dtype]] = {"F16": torch.float16, "BF16": torch.bfloat16}


def dtype_of(files: list[Path], prefixes: tuple[str, ...] = ("",)) -> torch.dtype:
    """fp16 or bf16 if all floating point tensors are, so that none has to be converted; else fp32.

    Only tensors with a dimension and with one of the `prefixes` count.
    """
    found = {kind for name, kind in stored_formats(files).items() if name.startswith(prefixes)}
    return SAFETENSORS_HALF.get(found.pop(), torch.float32) if len(found) == 1 else torch.float32
