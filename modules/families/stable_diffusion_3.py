"""Stable Diffusion 3 and 3.5, medium and large (Esser et al. 2024, arXiv:2403.03206)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.flow_matching import TIMESTEP_SCALE
from modules.diffusion.text_states import TextBatch
from modules.facts.stable_diffusion_3 import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT, POOLED = "prompt", "pooled"


class StableDiffusion3(FlowTransformer):
    """Two CLIP encoders and T5, padded and without a mask, as the transformer was trained."""

    facts = FACTS
    text_names = (PROMPT, POOLED)
    packed_latents = 1
    caption_tokenizer = "tokenizer_3"
    max_tokens = 256

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        prediction: Tensor = self.model(
            hidden_states=x_t,
            timestep=sigma * TIMESTEP_SCALE,
            encoder_hidden_states=text[PROMPT],
            pooled_projections=text[POOLED],
            return_dict=False,
        )[0]
        return prediction

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        # those of CLIP come first
        return {PROMPT: (77 + tokens, config["joint_attention_dim"]), POOLED: (config["pooled_projection_dim"],)}

    @classmethod
    def covered_side(cls, config: Mapping[str, Any]) -> int:
        return cls.size_step * int(config["pos_embed_max_size"])

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, _, pooled, _ = pipeline.encode_prompt(
            prompt,
            None,
            None,
            device=device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.caption_limit,
        )
        return {PROMPT: states[0], POOLED: pooled[0]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        return {
            "prompt_embeds": prompt[PROMPT],
            "pooled_prompt_embeds": prompt[POOLED],
            "negative_prompt_embeds": negative[PROMPT],
            "negative_pooled_prompt_embeds": negative[POOLED],
            "guidance_scale": guidance_scale,
        }
