"""Pictures in the space of a variational autoencoder (Rombach et al. 2022, arXiv:2112.10752)."""

from __future__ import annotations

from typing import Literal

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from PIL.Image import Image
from torch import Tensor
from torch.nn import functional

from modules.data.batch import Example

Latents = Literal["sample", "mode"]


def encode_pictures(vae: AutoencoderKL, pixels: Tensor, latents: Latents) -> dict[str, Tensor]:
    """uint8 [B, 3, H, W] to `mean` [B, 4, h, w] and, where samples are to be drawn, `spread`; not scaled yet."""
    weights = next(vae.parameters())
    levels = to_levels(pixels).to(weights)
    if levels.device.type == "cpu":  # oneDNN otherwise sorts every layer's pixels anew: 1.6 times the time
        levels = levels.contiguous(memory_format=torch.channels_last)
    distribution = vae.encode(levels, return_dict=False)[0]
    encoded = {"mean": distribution.mean.float().contiguous()}
    if latents == "sample":
        encoded["spread"] = distribution.std.float().contiguous()
    return encoded


def decode_picture(vae: AutoencoderKL, latents: Tensor) -> Image:
    """The picture of latents [1, 4, h, w] that are not scaled."""
    with torch.autocast(latents.device.type, enabled=False):  # SDXL's autoencoder overflows in fp16
        pixels = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
    pictures: list[Image] = VaeImageProcessor().postprocess(pixels, output_type="pil", do_denormalize=[True])
    return pictures[0]


def filled(batch: Tensor, size: int) -> Tensor:
    """[B, ...] to [size, ...], the last one repeated: networks may round otherwise where a batch is smaller."""
    missing = size - len(batch)
    return batch if missing <= 0 else torch.cat([batch, batch[-1:].expand(missing, *batch.shape[1:])])


def draw_latents(cached: dict[str, Tensor], scale: float, generator: torch.Generator) -> Tensor:
    """x_0 [4, h, w] of what `encode_pictures` made: a sample of the distribution, or its middle."""
    latents = cached["mean"]
    if "spread" in cached:
        latents = latents + cached["spread"] * torch.randn(latents.shape, generator=generator)
    return latents * scale


def to_levels(pixels: Tensor) -> Tensor:
    """uint8 to fp32 from -1 to 1, as the autoencoder reads pictures."""
    return pixels.to(torch.float32) / 127.5 - 1.0


def whole_mask(example: Example) -> Tensor:
    """The mask uint8 [1, H, W] of a picture, all white where it has none."""
    return torch.full_like(example.pixels[:1], 255) if example.mask is None else example.mask


def shrink_mask(mask: Tensor, size: torch.Size) -> Tensor:
    """A mask uint8 [1, H, W] at the size of latents: how much of each place is white, uint8 [1, h, w]."""
    return functional.adaptive_avg_pool2d(mask.to(torch.float32), (size[0], size[1])).round().to(torch.uint8)


def mask_weights(mask: Tensor, outside: float) -> Tensor:
    """What the loss counts at each place, fp32 [1, h, w]: 1 inside and `outside` elsewhere, scaled to a mean of 1."""
    inside = mask.to(torch.float32) / 255.0
    weights = outside + (1.0 - outside) * inside
    return weights / weights.mean().clamp_min(1e-6)  # an empty mask may leave nothing to learn
