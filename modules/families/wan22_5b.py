"""Wan 2.2 TI2V (Alibaba 2025, arXiv:2503.20314): Wan with 5 B parameters, which animates images as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
from PIL import Image, ImageOps
from torch import Tensor

from modules.diffusion.flow_options import FirstFrameOptions
from modules.diffusion.flow_pipeline import TransformerStandIn
from modules.diffusion.text_states import TextBatch
from modules.facts.wan22_5b import FACTS
from modules.families._family import SampleRequest
from modules.families.wan import Wan


class Wan22(Wan):
    """Each token of the transformer may have a noise level of its own: 0 for those of an image that is continued."""

    Options = FirstFrameOptions
    facts = FACTS
    size_step = FACTS.size_step
    pixels_per_latent = 16

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        if sigma.ndim == 2:
            height, width = (side // 2 for side in x_t.shape[-2:])
            sigma = sigma.repeat_interleave(height * width, dim=1)
        return super().velocity(x_t, sigma, text, guidance)

    def sampling_pipeline(self, request: SampleRequest, vae: Any) -> Any:
        kind = diffusers.WanImageToVideoPipeline if request.references else diffusers.WanPipeline
        transformer = TransformerStandIn(self.components.transformer, self.model)
        return replace(self.components, pipeline_class=kind).pipeline(transformer=transformer, vae=vae)

    def reference_arguments(self, request: SampleRequest) -> dict[str, Any]:
        """The first frame, cropped to the size of the video as images are in training."""
        size = (request.width, request.height)
        images = [ImageOps.fit(each.image, size, Image.Resampling.LANCZOS) for each in request.references]
        return {"image": images[0]} if images else {}
