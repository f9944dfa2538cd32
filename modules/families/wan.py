"""Wan 2.1 (Alibaba 2025, arXiv:2503.20314), which generates videos from text: 1.3 and 14 B parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from modules.diffusion.text_states import TextBatch
from modules.facts.wan import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt.states"


class Wan(FlowTransformer):
    """UMT5 encodes the prompt; the transformer was trained on its states with zeros to 512 tokens, without a mask."""

    facts = FACTS
    text_names = (PROMPT,)
    packed_latents = 1

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        return cast(Tensor, self.model(x_t, 1000 * sigma, _padded(text[PROMPT]), return_dict=False)[0])

    @classmethod
    def covered_side(cls, config: Mapping[str, Any]) -> int:
        """The table is the same for time and both sides."""
        return cls.size_step * int(config["rope_max_seq_len"])

    @classmethod
    def covered_frames(cls, config: Mapping[str, Any]) -> int:
        assert cls.facts.clips is not None
        return 1 + cls.facts.clips.step * (int(config["rope_max_seq_len"]) - 1)

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        return {PROMPT: (tokens, config["text_dim"])}

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, _ = pipeline.encode_prompt(
            prompt, do_classifier_free_guidance=False, max_sequence_length=self.caption_limit, device=device
        )
        return {PROMPT: states[0][states[0].any(dim=1)]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        return {
            "prompt_embeds": _padded(prompt[PROMPT]),
            "negative_prompt_embeds": _padded(negative[PROMPT]),
            "guidance_scale": guidance_scale,
        }


def _padded(states: Tensor) -> Tensor:
    """[B, T, D] with zeros up to the length that the transformer was trained with."""
    return nn.functional.pad(states, (0, 0, 0, Wan.max_tokens - states.shape[1]))
