"""Krea 2 (Krea 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.flow_matching import SigmaShift
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.latent_tokens import from_tokens, to_tokens
from modules.diffusion.text_states import TextBatch
from modules.facts.krea2 import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT, GAP = "prompt.states", "gap"


class Krea2(FlowTransformer):
    """Several layers of Qwen3-VL encode the prompt; the transformer masks padding, and all text is at one position.

    The pipeline pads between the prompt and the end of its template: that gap, int64 [2] (start, end), is kept, so
    that a sample sums in the pipeline's order.
    """

    facts = FACTS
    text_names = (PROMPT, GAP)
    shift_defaults = {**FlowTransformer.shift_defaults, "max_image_seq_len": 6400}  # noqa: RUF012

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        height, width = (side // 2 for side in x_t.shape[-2:])
        states = text[PROMPT]
        positions = self.components.pipeline_class.prepare_position_ids(states.shape[1], height, width, x_t.device)
        prediction = self.model(
            hidden_states=to_tokens(x_t),
            encoder_hidden_states=states,
            timestep=sigma,
            position_ids=positions,
            encoder_attention_mask=text.mask(PROMPT),
            return_dict=False,
        )[0]
        return from_tokens(prediction, x_t.shape)

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        return {PROMPT: (tokens, config["num_text_layers"], config["text_hidden_dim"])}

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, mask = pipeline.encode_prompt(prompt, device, max_sequence_length=self.caption_limit)
        used = mask[0].nonzero().flatten()
        after = int((used == torch.arange(len(used), device=used.device)).sum())
        gap = torch.tensor([after, after + len(mask[0]) - len(used)])
        return {PROMPT: states[0][mask[0]], GAP: gap}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        states, mask = _padded(prompt)
        negative_states, negative_mask = _padded(negative)
        return {
            "prompt_embeds": states,
            "prompt_embeds_mask": mask,
            "negative_prompt_embeds": negative_states,
            "negative_prompt_embeds_mask": negative_mask,
            "guidance_scale": guidance_scale,
        }

    @classmethod
    def shift_of(cls, options: FlowOptions, scheduler: Mapping[str, Any], index: Mapping[str, Any]) -> SigmaShift:
        """The pipeline of a distilled model takes one shift for all sizes."""
        if options.timestep_shift == "model" and index.get("is_distilled"):
            return SigmaShift(intercept=1.15)
        return super().shift_of(options, scheduler, index)


def _padded(text: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """States [1, S, L, D] with zeros in the gap, and their mask bool [1, S]."""
    states, (start, end) = text[PROMPT], text[GAP][0].tolist()
    gap = states.new_zeros(1, end - start, *states.shape[2:])
    mask = torch.ones(1, states.shape[1] + end - start, dtype=torch.bool, device=states.device)
    mask[:, start:end] = False
    return torch.cat([states[:, :start], gap, states[:, start:]], dim=1), mask
