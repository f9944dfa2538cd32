"""The torch dtypes of the number formats in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

HALF_DTYPES: Final[Mapping[str, torch.dtype]] = {"bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES: Final[Mapping[str, torch.dtype]] = {"fp64": torch.float64, "fp32": torch.float32, **HALF_DTYPES}
