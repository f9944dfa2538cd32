"""Which part of a picture an inpainting model has to fill while it learns."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modules.data.batch import Example
from modules.families.parts.latents import encode_pictures

SMALLEST, LARGEST = 0.25, 0.9  # the hole's sides, as shares of the picture's


def hole_of(example: Example) -> Tensor:
    """uint8 [1, H, W], 255 where the picture is to be filled: its mask, or else a box that depends on its pixels."""
    if example.mask is not None:
        return torch.where(example.mask > 127, 255, 0).to(torch.uint8)
    content = hashlib.sha256(example.pixels.numpy().tobytes()).digest()
    shares = np.frombuffer(content[:16], dtype="<u4") / 2**32
    _, height, width = example.pixels.shape
    hole = torch.zeros(1, height, width, dtype=torch.uint8)
    tall, wide = (
        int(side * (SMALLEST + (LARGEST - SMALLEST) * s)) for side, s in ((height, shares[0]), (width, shares[1]))
    )
    top, left = int((height - tall) * shares[2]), int((width - wide) * shares[3])
    hole[:, top : top + tall, left : left + wide] = 255
    return hole


def nothing_kept(vae: Any, size: tuple[int, int], scale: float) -> Tensor:
    """The hole and the latents of what is kept, [1, 5, h, w], for a picture of (height, width) without anything."""
    grey = torch.full((1, 3, *size), 128, dtype=torch.uint8, device=next(vae.parameters()).device)
    with torch.autocast(grey.device.type, enabled=False):  # as while preparing: SDXL's autoencoder overflows in fp16
        kept = encode_pictures(vae, grey, "mode")["mean"] * scale
    return torch.cat([torch.ones_like(kept[:, :1]), kept], dim=1)
