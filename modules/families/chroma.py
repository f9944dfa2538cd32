"""Chroma (Rock 2025): FLUX.1 schnell pruned to 8.9 B parameters and trained without distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.flow_pipeline import FlowPipelineSpec
from modules.diffusion.text_states import TextBatch
from modules.families._flow_transformer import FlowTransformer, from_tokens, image_positions, to_tokens

PROMPT, MASK = "prompt", "prompt_mask"


class Chroma(FlowTransformer):
    """T5 encodes the prompt, padded; the transformer takes its mask as numbers, in the dtype of the states."""

    about = "Chroma by Lodestone Rock: 8.9 B parameters (18 GB in bf16), Apache 2.0."
    spec = FlowPipelineSpec(("ChromaPipeline", "ChromaImg2ImgPipeline"), {"text_encoder": "tokenizer"})
    architecture = "chroma"
    text_names = (PROMPT, MASK)

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        """See FlowTransformer."""
        tokens = to_tokens(x_t)
        prediction = self.model(
            hidden_states=tokens,
            timestep=sigma,
            encoder_hidden_states=text[PROMPT],
            txt_ids=x_t.new_zeros(text[PROMPT].shape[1], 3),
            img_ids=image_positions(x_t),
            attention_mask=torch.cat([text[MASK], text[MASK].new_ones(tokens.shape[:2])], dim=1),
            return_dict=False,
        )[0]
        return from_tokens(prediction, x_t.shape)

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        """See FlowEstimates."""
        return {PROMPT: (tokens, config["joint_attention_dim"]), MASK: (tokens,)}

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """See FlowSampling."""
        states, _, mask, *_ = pipeline.encode_prompt(
            prompt, device=device, do_classifier_free_guidance=False, max_sequence_length=self.caption_limit
        )
        return {PROMPT: states[0], MASK: mask[0]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """See FlowSampling."""
        return {
            "prompt_embeds": prompt[PROMPT],
            "prompt_attention_mask": prompt[MASK],
            "negative_prompt_embeds": negative[PROMPT],
            "negative_prompt_attention_mask": negative[MASK],
            "guidance_scale": guidance_scale,
        }
