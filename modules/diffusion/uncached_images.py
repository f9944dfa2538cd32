"""Images whose latents are not cached: pixels from the loader, encoded on the device when they are trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from modules.data.batch import Example
from modules.diffusion.latents import Latents, encode_images
from modules.diffusion.pixels import downsample_mask, inpaint_mask, mask_or_ones

if TYPE_CHECKING:  # loader workers start without diffusers
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

IMAGE, HOLE_PIXELS, LATENT_NOISE = "image", "hole_pixels", "latent_noise"
_GREY = 128  # what inpainting models see inside the hole


@dataclass(frozen=True)
class LatentExample:
    """What LatentDiffusion.encode returns of an example, with its pixels in place of latents."""

    masked: bool
    is_inpainting: bool
    pixels_per_latent: int
    size_conditioning: Callable[[Example], dict[str, Tensor]]

    def __call__(self, example: Example) -> dict[str, Tensor]:
        """image uint8 [3, H, W]; sizes fp32 [6] for SDXL; mask uint8 [1, h, w] with masked training; of inpainting
        models hole uint8 [1, h, w] and hole_pixels uint8 [1, H, W]."""
        encoded = {IMAGE: example.pixels, **self.size_conditioning(example)}
        height, width = example.pixels.shape[-2:]
        size = torch.Size((height // self.pixels_per_latent, width // self.pixels_per_latent))
        if self.masked:
            encoded["mask"] = downsample_mask(mask_or_ones(example), size)
        if self.is_inpainting:
            hole = inpaint_mask(example)
            encoded |= {HOLE_PIXELS: hole, "hole": (downsample_mask(hole, size) > 127).to(torch.uint8)}
        return encoded


@torch.no_grad()
def encode_batch_images(
    tensors: Mapping[str, Tensor], vae: AutoencoderKL, latents: Latents, scaling_factor: float
) -> dict[str, Tensor]:
    """The tensors of a batch with `latents` [B, 4, h, w], and of inpainting models `masked_latents`, in place of their
    images, in the dtype of its noise."""
    others = {name: value for name, value in tensors.items() if name not in (IMAGE, HOLE_PIXELS, LATENT_NOISE)}
    images, dtype = tensors[IMAGE], tensors["noise"].dtype
    with torch.autocast(images.device.type, enabled=False):  # as when caching: SDXL's autoencoder overflows in fp16
        encoded = encode_images(vae, images, latents)
        x_0 = encoded["mean"].to(dtype)
        if "spread" in encoded:
            x_0 = x_0 + encoded["spread"].to(dtype) * tensors[LATENT_NOISE]
        found = {"latents": x_0 * scaling_factor}
        if HOLE_PIXELS in tensors:
            masked = torch.where(tensors[HOLE_PIXELS] > 0, torch.full_like(images, _GREY), images)
            found["masked_latents"] = encode_images(vae, masked, "mode")["mean"].to(dtype) * scaling_factor
    return {**others, **found}
