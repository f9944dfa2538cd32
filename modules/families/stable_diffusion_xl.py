"""Stable Diffusion XL (Podell et al. 2023, arXiv:2307.01952)."""

from __future__ import annotations

import torch
from torch import Tensor

from modules.data.batch import Example
from modules.facts.stable_diffusion_xl import FACTS
from modules.families._latent_diffusion import LatentDiffusion


class StableDiffusionXL(LatentDiffusion):
    """Two text encoders, read at their penultimate layer; the UNet is also conditioned on the image's size and crop."""

    facts = FACTS
    submodules = ("unet", "text_encoder", "text_encoder_2")
    adapter_prefixes = {  # noqa: RUF012
        "unet": ("unet", "lora_unet"),
        "text_encoder": ("text_encoder", "lora_te1"),
        "text_encoder_2": ("text_encoder_2", "lora_te2"),
    }
    layer = "penultimate"

    def architecture(self) -> str:
        """That of the base model; refiners cannot be trained."""
        return "stable-diffusion-xl-v1-base"

    def fingerprint(self) -> str:
        """As in the base class; caches of 0.1.0 have crops of mirrored images counted from the other edge."""
        return f"{super().fingerprint()} crops=2"

    @staticmethod
    def size_conditioning(example: Example) -> dict[str, Tensor]:
        """Original height and width, top and left of the crop, target height and width, in pixels (section 2.2)."""
        target = example.pixels.shape[-2:]
        return {"sizes": torch.tensor([*example.original_size, *example.crop, *target], dtype=torch.float32)}
