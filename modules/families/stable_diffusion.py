"""Stable Diffusion 1 and 2 (Rombach et al. 2022, arXiv:2112.10752), and their inpainting models."""

from __future__ import annotations

from torch import Tensor

from modules.data.batch import Example
from modules.facts.stable_diffusion import FACTS
from modules.families._latent_diffusion import LatentDiffusion


class StableDiffusion(LatentDiffusion):
    """One text encoder, read at its last layer."""

    submodules = ("unet", "text_encoder")
    facts = FACTS
    layer = "last"

    def architecture(self) -> str:
        """Version 1 has OpenAI's text encoder, which alone uses quick_gelu; version 2 has OpenCLIP's."""
        if self.components.encoders["text_encoder"].config.hidden_act == "quick_gelu":
            return "stable-diffusion-v1"
        return f"stable-diffusion-v2-{'768-v' if self.prediction == 'v_prediction' else '512'}"

    @staticmethod
    def size_conditioning(example: Example) -> dict[str, Tensor]:
        """None: this UNet has no size conditioning."""
        return {}
