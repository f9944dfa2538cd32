"""The family pixel_diffusion in processes that may use little of their GPU's memory, for scripts/gpu_check.py."""

from __future__ import annotations

from typing import Self

import torch

from modules.config import TrainConfig
from modules.families.pixel_diffusion import PixelDiffusion

LIMIT_BYTES = 1 << 30


class SmallMemory(PixelDiffusion):
    """As its base class; torch raises its own out-of-memory error at the limit."""

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """See Family."""
        if torch.cuda.is_available():
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total))
        return super().load(config)
