"""Images and masks as tensors: value ranges, loss weights, inpainting masks. Light to import, for loader workers."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from modules.data.batch import Example

MIN_SIDE, MAX_SIDE = 0.25, 0.9  # of a random inpainting box, as fractions of the image's sides


def normalize_pixels(pixels: Tensor) -> Tensor:
    """uint8 [..., 3, H, W] to fp32 in [-1, 1], the range that autoencoders and networks expect."""
    return pixels.to(torch.float32) / 127.5 - 1.0


def rgb_image(pixels: Tensor) -> Image.Image:
    """The image of pixels uint8 [3, H, W], on any device."""
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


def rgb_pixels(image: Image.Image) -> Tensor:
    """uint8 [3, H, W] of an RGB image."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def mask_or_ones(example: Example) -> Tensor:
    """The example's mask uint8 [1, H, W]; all 255 if it has none."""
    size = (1, *example.pixels.shape[-2:])
    return example.pixels.new_full(size, 255) if example.mask is None else example.mask


def downsample_mask(mask: Tensor, size: torch.Size) -> Tensor:
    """A mask uint8 [1, H, W], averaged down to the latents' `size` (h, w): uint8 [1, h, w]."""
    return functional.adaptive_avg_pool2d(mask.to(torch.float32), (size[0], size[1])).round().to(torch.uint8)


def mask_loss_weights(mask: Tensor, unmasked_weight: float, *, normalize: bool) -> Tensor:
    """Loss weights fp32 [1, h, w] for a mask uint8 [1, h, w]: 1 inside, `unmasked_weight` outside; with `normalize`
    divided by their mean."""
    inside = mask.to(torch.float32) / 255.0
    weights = unmasked_weight + (1.0 - unmasked_weight) * inside
    # an empty mask may leave nothing to train on
    return weights / weights.mean().clamp_min(1e-6) if normalize else weights


def inpaint_mask(example: Example) -> Tensor:
    """uint8 [1, H, W], 255 where the model is to fill in: the example's mask, else a box derived from its pixels."""
    if example.mask is not None:
        return torch.where(example.mask > 127, 255, 0).to(torch.uint8)
    content = hashlib.sha256(example.pixels.numpy().tobytes()).digest()
    random = np.frombuffer(content[:16], dtype="<u4") / 2**32
    _, height, width = example.pixels.shape
    mask = torch.zeros(1, height, width, dtype=torch.uint8)
    box_height, box_width = (
        int(side * (MIN_SIDE + (MAX_SIDE - MIN_SIDE) * r)) for side, r in ((height, random[0]), (width, random[1]))
    )
    top, left = int((height - box_height) * random[2]), int((width - box_width) * random[3])
    mask[:, top : top + box_height, left : left + box_width] = 255
    return mask
