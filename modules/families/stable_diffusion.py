"""Stable Diffusion 1 and 2 (Rombach et al. 2022, arXiv:2112.10752), and their inpainting models."""

from __future__ import annotations

from torch import Tensor

from modules.data.batch import Example
from modules.families.parts.components import Kind
from modules.families.parts.latent_diffusion import LatentDiffusion


class StableDiffusion(LatentDiffusion):
    """One text encoder, whose last layer is read."""

    parts = ("unet", "text_encoder")
    adapter_names = {"unet": ("unet", "lora_unet"), "text_encoder": ("text_encoder", "lora_te")}  # noqa: RUF012
    kind = Kind(
        pipeline="StableDiffusionPipeline",
        inpainting="StableDiffusionInpaintPipeline",
        encoders={"text_encoder": "tokenizer"},
        made_with={"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False},
    )
    layer = "last"

    def architecture(self) -> str:
        """Version 2 has OpenCLIP's text encoder; OpenAI's alone has this activation function."""
        if self.components.encoders["text_encoder"].config.hidden_act == "quick_gelu":
            return "stable-diffusion-v1"
        return f"stable-diffusion-v2-{'768-v' if self.prediction == 'v_prediction' else '512'}"

    def sizes(self, example: Example) -> dict[str, Tensor]:
        """This UNet knows no sizes."""
        return {}
