"""Z-Image (Tongyi-MAI 2025, arXiv:2511.22699): a single-stream transformer of 6 B parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import add
from typing import Any

import torch
from torch import Tensor

from modules.config import TrainConfig
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.flow_pipeline import FlowComponents
from modules.diffusion.padding_mask import PaddingMask
from modules.diffusion.text_states import TextBatch
from modules.facts.z_image import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt.states"


class ZImage(FlowTransformer):
    """Prompts are encoded by Qwen3 as a message of a user; the transformer takes them without padding."""

    facts = FACTS
    text_names = (PROMPT,)
    packed_latents = 1

    def __init__(self, config: TrainConfig, options: FlowOptions, components: FlowComponents) -> None:
        super().__init__(config, options, components)
        transformer = components.transformer
        transformer._prepare_sequence = _marking(transformer._prepare_sequence, lambda captions, *_: map(len, captions))
        transformer._build_unified_sequence = _marking(
            transformer._build_unified_sequence, lambda *given: map(add, given[2], given[6])
        )

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        """The transformer counts time from noise, 0, to the image, 1, and predicts x_0 - noise."""
        images = list(x_t.unsqueeze(2).unbind(0))
        return -torch.stack(self.model(images, 1 - sigma, text.each(PROMPT), return_dict=False)[0]).squeeze(2)

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        return {PROMPT: (tokens, config["cap_feat_dim"])}

    @classmethod
    def covered_side(cls, config: Mapping[str, Any]) -> int:
        _, *sides = config["axes_lens"]
        return cls.size_step * int(min(sides))

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, _ = pipeline.encode_prompt(
            [prompt], device, do_classifier_free_guidance=False, max_sequence_length=self.caption_limit
        )
        return {PROMPT: states[0]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        return {
            "prompt_embeds": list(prompt[PROMPT]),
            "negative_prompt_embeds": list(negative[PROMPT]),
            "guidance_scale": guidance_scale,
        }

    def count_tokens(self, caption: str) -> int:
        tokenizer = self.components.tokenizers["tokenizer"]
        message = [{"role": "user", "content": caption}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, enable_thinking=True)
        return len(tokenizer(text, verbose=False).input_ids)


def _marking(
    make: Callable[..., tuple[Any, ...]], lengths_of: Callable[..., Iterable[int]]
) -> Callable[..., tuple[Any, ...]]:
    """`make` of diffusers' transformer (0.42), whose third result is a mask, with the lengths of its sequences."""

    def made(*given: Any) -> tuple[Any, ...]:
        states, positions, mask, *others = make(*given)
        if mask is not None:
            mask = PaddingMask.marked(mask, tuple(lengths_of(*given)), mask.shape[1])
        return states, positions, mask, *others

    return made
