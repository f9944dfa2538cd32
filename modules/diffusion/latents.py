"""Images in the latent space of a variational autoencoder (Rombach et al. 2022, arXiv:2112.10752)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from PIL.Image import Image
from torch import Tensor

from modules.diffusion.pixels import normalize_pixels

if TYPE_CHECKING:  # loader workers, which use `sample_latents` alone, start without diffusers
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

Latents = Literal["sample", "mode"]


def encode_images(vae: AutoencoderKL, pixels: Tensor, latents: Latents) -> dict[str, Tensor]:
    """Unscaled latents of `pixels` uint8 [B, 3, H, W]: `mean` and, for "sample", the standard deviation `spread`, each
    fp32 [B, 4, h, w]."""
    weights = next(vae.parameters())
    images = normalize_pixels(pixels).to(weights)
    if images.device.type == "cpu":  # oneDNN would otherwise reorder memory in every layer: 1.6 times the time
        images = images.contiguous(memory_format=torch.channels_last)
    distribution = vae.encode(images, return_dict=False)[0]
    encoded = {"mean": distribution.mean.float().contiguous()}
    if latents == "sample":
        encoded["spread"] = distribution.std.float().contiguous()
    return encoded


def sample_latents(cached: dict[str, Tensor], scaling_factor: float, generator: torch.Generator) -> Tensor:
    """x_0 fp32 [4, h, w] from the cached output of `encode_images`, in any precision: a sample of the distribution, or
    its mode."""
    latents = cached["mean"].float()
    if "spread" in cached:
        latents = latents + cached["spread"].float() * torch.randn(latents.shape, generator=generator)
    return latents * scaling_factor


def decode_image(vae: AutoencoderKL, latents: Tensor) -> Image:
    """The image of unscaled latents [1, 4, h, w]."""
    from diffusers.image_processor import VaeImageProcessor

    with torch.autocast(latents.device.type, enabled=False):  # SDXL's autoencoder overflows in fp16
        pixels = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
    images: list[Image] = VaeImageProcessor().postprocess(pixels, output_type="pil", do_denormalize=[True])
    return images[0]


def blank_inpainting_input(vae: AutoencoderKL, size: tuple[int, int], scaling_factor: float) -> Tensor:
    """Mask and masked-image latents [1, 5, h, w] to fill in a whole image of `size` (height, width)."""
    grey = torch.full((1, 3, *size), 128, dtype=torch.uint8, device=next(vae.parameters()).device)
    with torch.autocast(grey.device.type, enabled=False):  # as when caching: SDXL's autoencoder overflows in fp16
        masked_latents = encode_images(vae, grey, "mode")["mean"] * scaling_factor
    return torch.cat([torch.ones_like(masked_latents[:, :1]), masked_latents], dim=1)


def pad_batch(batch: Tensor, size: int) -> Tensor:
    """[B, ...] padded to [size, ...] with the last item: networks may round differently in smaller batches."""
    missing = size - len(batch)
    return batch if missing <= 0 else torch.cat([batch, batch[-1:].expand(missing, *batch.shape[1:])])
