"""Stable Diffusion XL (Podell et al. 2023, arXiv:2307.01952)."""

from __future__ import annotations

import torch
from torch import Tensor

from modules.data.batch import Example
from modules.families.parts.components import Kind
from modules.families.parts.latent_diffusion import LatentDiffusion


class StableDiffusionXL(LatentDiffusion):
    """Two text encoders, whose last layer but one is read; the UNet is told the picture's size and crop, too."""

    parts = ("unet", "text_encoder", "text_encoder_2")
    adapter_names = {  # noqa: RUF012
        "unet": ("unet", "lora_unet"),
        "text_encoder": ("text_encoder", "lora_te1"),
        "text_encoder_2": ("text_encoder_2", "lora_te2"),
    }
    kind = Kind(
        pipeline="StableDiffusionXLPipeline",
        inpainting="StableDiffusionXLInpaintPipeline",
        encoders={"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"},
        made_with={"add_watermarker": False},
    )
    layer = "penultimate"

    def architecture(self) -> str:
        """Refiners are not trained."""
        return "stable-diffusion-xl-v1-base"

    def sizes(self, example: Example) -> dict[str, Tensor]:
        """The file's height and width, the crop's top and left, the height and width that are seen (section 2.2)."""
        seen = example.pixels.shape[-2:]
        return {"sizes": torch.tensor([*example.original_size, *example.crop, *seen], dtype=torch.float32)}
