"""From one cached example to the tensors of a training sample; runs in the loader's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.diffusion.latents import sample_latents
from modules.diffusion.noise import sample_noise
from modules.diffusion.options import DiffusionOptions
from modules.diffusion.pixels import mask_loss_weights
from modules.diffusion.text_encoders import HIDDEN, POOLED, TOKENS
from modules.diffusion.timesteps import sample_timestep
from modules.diffusion.token_chunks import PromptTokenizer
from modules.diffusion.uncached_images import HOLE_PIXELS, IMAGE, LATENT_NOISE


def sample_training_timestep(options: DiffusionOptions, num_timesteps: int, generator: torch.Generator) -> Tensor:
    """The timestep of one training sample, int64 []."""
    return sample_timestep(
        options.timestep_distribution, num_timesteps, options.min_timestep, options.max_timestep, generator
    )


@dataclass(frozen=True)
class LatentSampleTransform:
    """Samples latents, noise and timestep; looks up the caption's embeddings, or tokenizes it."""

    options: DiffusionOptions
    alphas_cumprod: Tensor  # fp32 [T]
    scaling_factor: float  # of the latents
    unmasked_weight: float
    normalize_mask: bool
    tokenizer: PromptTokenizer
    uncached_encoders: tuple[str, ...]  # the text encoders that run in every step
    empty_caption: Mapping[str, Tensor]  # the cached encoders' embeddings of "", for dropped captions
    latent_channels: int
    pixels_per_latent: int

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """The tensors of one sample: latents and noise fp32 [4, h, w], timestep int64 [], alpha_bar fp32 []; for each
        encoder NAME.hidden [T, D] and NAME.pooled [P], or NAME.tokens int64 [N, 77]; if cached, sizes [6], and for
        inpainting inpaint_mask [1, h, w] and masked_latents [4, h, w]; with a mask, loss weights [1, h, w]. Of an image
        that is not cached, image uint8 [3, H, W], latent_noise [4, h, w] and hole_pixels stand for latents."""
        options = self.options
        latents = self._latents(cached, generator)
        shape = self._latent_shape(cached[IMAGE]) if IMAGE in cached else latents["latents"].shape
        noise = sample_noise(shape, options.offset_noise, generator)
        timestep = sample_training_timestep(options, len(self.alphas_cumprod), generator)
        sample = {**latents, "noise": noise, "timestep": timestep, "alpha_bar": self.alphas_cumprod[timestep]}
        for encoder in self.uncached_encoders:
            sample[encoder + TOKENS] = self.tokenizer.input_ids(encoder, caption)
        own = {name: tensor for name, tensor in cached.items() if name.endswith((HIDDEN, POOLED))}
        sample |= own or self.empty_caption
        if "mask" in cached:
            sample["weights"] = mask_loss_weights(cached["mask"], self.unmasked_weight, normalize=self.normalize_mask)
        if "hole" in cached:
            sample["inpaint_mask"] = cached["hole"].to(torch.float32)
            if "kept" in cached:
                sample["masked_latents"] = cached["kept"].float() * self.scaling_factor
        return sample | {name: cached[name] for name in ("sizes", HOLE_PIXELS) if name in cached}

    def _latents(self, cached: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Latents; of an image that is not cached, the image and the noise to sample its latents with."""
        if IMAGE not in cached:
            return {"latents": sample_latents(cached, self.scaling_factor, generator)}
        image = cached[IMAGE]
        if self.options.latents == "mode":
            return {IMAGE: image}
        return {IMAGE: image, LATENT_NOISE: torch.randn(self._latent_shape(image), generator=generator)}

    def _latent_shape(self, image: Tensor) -> torch.Size:
        height, width = image.shape[-2:]
        return torch.Size((self.latent_channels, height // self.pixels_per_latent, width // self.pixels_per_latent))
