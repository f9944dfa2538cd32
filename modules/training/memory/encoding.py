"""The memory that the autoencoder takes besides its weights while it encodes images for the cache."""

from __future__ import annotations

import torch

from modules.config import TrainConfig
from modules.families._family import Family
from modules.torch_compat import FakeTensorMode
from modules.training.memory.live_bytes import LiveBytes


def encoding_activations(kind: type[Family], config: TrainConfig) -> dict[str, int]:
    """The name of its row in the memory table, and bytes; empty if it is not known or nothing is cached.

    Of one image, because more are encoded at once only if they fit. Text encoders work before and after it, and take
    less. Raises ConfigError as set-up does.
    """
    side = config.resolution
    with FakeTensorMode(allow_non_fake_inputs=True):
        encode = kind.meta_encoder(config) if config.cache_latents else None
        if encode is None:
            return {}
        pixels = torch.zeros(1, 3, side, side)
        with LiveBytes() as live:
            encode(pixels)
    in_fp64 = 2 if config.precision == "fp64" else 1
    return {f"activations of the autoencoder for {side} x {side} pixels": live.peak * in_fp64}
