"""FLUX.1 Kontext (Black Forest Labs 2025, arXiv:2506.15742): FLUX.1 dev that sees an image which the prompt changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from modules.diffusion.latent_tokens import from_tokens, image_positions, to_tokens
from modules.diffusion.references import References
from modules.diffusion.text_states import TextBatch
from modules.facts.flux_kontext import FACTS
from modules.families._family import SampleRequest
from modules.families.flux import PROMPT, Flux


class FluxKontext(Flux):
    """The tokens of the reference follow those of the image, with 1 for 0 as the first number of their positions."""

    facts = FACTS

    def edit_velocity(
        self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None, references: References
    ) -> Tensor:
        images = (x_t, *references.latents)
        tokens = [to_tokens(each) for each in images]
        positions = torch.cat([image_positions(each, first) for first, each in enumerate(images)])
        seen = text[PROMPT].shape[1] + tokens[0].shape[1]
        mask = references.mask(seen, text[PROMPT].shape[1] + len(positions))
        prediction = self.predict(torch.cat(tokens, dim=1), positions, sigma, text, guidance, mask)
        return from_tokens(prediction[:, : tokens[0].shape[1]], x_t.shape)

    def reference_arguments(self, request: SampleRequest) -> dict[str, Any]:
        """The pipeline would scale the image to its usual area, and the reference as well."""
        references = self.reference_images(request)
        arguments: dict[str, Any] = {"max_area": request.width * request.height}
        return arguments | ({"image": references[0], "_auto_resize": False} if references else {})
