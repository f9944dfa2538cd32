"""FLUX.1 (Black Forest Labs 2024): dev, which is guidance-distilled, and schnell; 12 B parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.flow_options import GuidedFlowOptions
from modules.diffusion.latent_tokens import from_tokens, image_positions, to_tokens
from modules.diffusion.text_states import TextBatch
from modules.facts.flux import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT, POOLED = "prompt", "pooled"


class Flux(FlowTransformer):
    """T5 encodes the prompt, padded and without a mask, as the transformer was trained; CLIP gives a pooled vector."""

    facts = FACTS
    Options = GuidedFlowOptions
    text_names = (PROMPT, POOLED)
    caption_tokenizer = "tokenizer_2"

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        prediction = self.predict(to_tokens(x_t), image_positions(x_t), sigma, text, guidance)
        return from_tokens(prediction, x_t.shape)

    def predict(
        self,
        tokens: Tensor,
        positions: Tensor,
        sigma: Tensor,
        text: TextBatch,
        guidance: Tensor | None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """What the transformer makes of image `tokens` [B, T, C] at `positions` [T, 3]. `mask` [B, 1, 1, ...] says
        which of the text's and these tokens attention sees."""
        prediction: Tensor = self.model(
            hidden_states=tokens,
            timestep=sigma,
            guidance=guidance,
            pooled_projections=text[POOLED],
            encoder_hidden_states=text[PROMPT],
            txt_ids=tokens.new_zeros(text[PROMPT].shape[1], 3),
            img_ids=positions,
            joint_attention_kwargs=None if mask is None else {"attention_mask": mask},
            return_dict=False,
        )[0]
        return prediction

    @property
    def caption_limit(self) -> int:
        """256 tokens for schnell, whose transformer has no guidance input."""
        is_schnell = not self.components.transformer.config["guidance_embeds"]
        return min(super().caption_limit, 256) if is_schnell else super().caption_limit

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        return {PROMPT: (tokens, config["joint_attention_dim"]), POOLED: (config["pooled_projection_dim"],)}

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        limit = self.caption_limit
        states, pooled, _ = pipeline.encode_prompt(prompt, None, device=device, max_sequence_length=limit)
        return {PROMPT: states[0], POOLED: pooled[0]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """The distilled model takes the guidance scale, and no negative prompt."""
        return {
            "prompt_embeds": prompt[PROMPT],
            "pooled_prompt_embeds": prompt[POOLED],
            "guidance_scale": guidance_scale,
        }
