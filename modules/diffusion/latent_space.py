"""The latents that a flow-matching transformer sees: those of its autoencoder, normalised and perhaps in patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.latents import Latents
from modules.diffusion.pixels import normalize_pixels


@dataclass(frozen=True)
class LatentSpace:
    """How latents [C, h, w] of an autoencoder become those that the transformer is trained on: (x - mean) / std.

    With `frame_step` latents are those of clips, [C, f, h, w]; an image is a clip of one frame. Loader workers hold it.
    """

    mean: Tensor  # fp32, [], [C, 1, 1] or [C, 1, 1, 1]
    std: Tensor
    channels: int  # after patching
    pixels: int  # sides of an image divided by those of its latents, after patching
    patch: int = 1  # squares of `patch` x `patch` latents are one, of as many times more channels
    is_video: bool = False  # the autoencoder takes frames [B, 3, F, H, W]
    frame_step: int | None = None  # frames of each latent behind the first, which has one; None: images alone

    @classmethod
    def of(cls, vae: Any, batch_norm_eps: float | None = None) -> LatentSpace:
        """That of a diffusers autoencoder: scale and shift, mean and std of its config, or its batch norm, with
        `batch_norm_eps` in place of the config's."""
        config = vae.config
        if hasattr(vae, "bn"):
            eps = config.batch_norm_eps if batch_norm_eps is None else batch_norm_eps
            std = (vae.bn.running_var.float() + eps).sqrt().view(-1, 1, 1)
            factor = 2 ** (len(config.block_out_channels) - 1)
            mean = vae.bn.running_mean.float().view(-1, 1, 1)
            return cls(mean.clone(), std, 4 * config.latent_channels, 2 * factor, patch=2)
        if getattr(config, "latents_mean", None) is not None:
            mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (config.latents_mean, config.latents_std))
            if hasattr(vae, "temperal_downsample"):  # diffusers' own spelling
                pixels = 2 ** len(vae.temperal_downsample) * (getattr(config, "patch_size", None) or 1)
                return cls(mean, std, config.z_dim, pixels, is_video=True)
        else:
            mean = torch.tensor(float(config.shift_factor or 0.0))
            std = torch.tensor(1.0 / float(config.scaling_factor))
        return cls(mean, std, config.latent_channels, 2 ** (len(config.block_out_channels) - 1))

    def of_clips(self, frame_step: int) -> LatentSpace:
        """The same with latents of clips, by an autoencoder that takes frames."""
        mean, std = self.mean.unsqueeze(-1), self.std.unsqueeze(-1)
        return replace(self, mean=mean, std=std, frame_step=frame_step)

    def shape(self, width: int, height: int, frames: int = 1) -> torch.Size:
        """Of the latents of an image, or of a clip of 1 + n x `frame_step` frames, of such a size in pixels."""
        places = (height // self.pixels, width // self.pixels)
        if self.frame_step is None:
            return torch.Size((self.channels, *places))
        return torch.Size((self.channels, 1 + (frames - 1) // self.frame_step, *places))

    @torch.no_grad()
    def encode(self, vae: Any, pixels: Tensor, latents: Latents) -> dict[str, Tensor]:
        """Latents of `pixels` uint8 [B, 3, H, W], or of clips [B, 3, F, H, W], before they are normalised: `mean` and,
        for "sample", the standard deviation `spread`, each fp32 [B, C, h, w] or [B, C, f, h, w]."""
        images = normalize_pixels(pixels).to(next(vae.parameters()))
        if self.is_video and images.ndim == 4:
            images = images.unsqueeze(2)
        with torch.autocast(images.device.type, enabled=False):
            distribution = vae.encode(images, return_dict=False)[0]
        encoded = {"mean": self._arrange(distribution.mean)}
        if latents == "sample":
            encoded["spread"] = self._arrange(distribution.std)
        return encoded

    def normalize(self, latents: Tensor) -> Tensor:
        """Latents [..., C, h, w] or [..., C, f, h, w] as the transformer is trained on them."""
        return (latents - self.mean.to(latents)) / self.std.to(latents)

    def _arrange(self, latents: Tensor) -> Tensor:
        """Contiguous fp32 [B, C, h, w], of clips [B, C, f, h, w], of the autoencoder's own latents."""
        latents = latents.float()
        if self.is_video and self.frame_step is None:
            latents = latents.squeeze(2)
        return torch.nn.functional.pixel_unshuffle(latents, self.patch).contiguous()
