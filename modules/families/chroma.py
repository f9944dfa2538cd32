"""Chroma (Rock 2025): FLUX.1 schnell pruned to 8.9 B parameters and trained without distillation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.flow_pipeline import FlowComponents
from modules.diffusion.latent_tokens import from_tokens, image_positions, to_tokens
from modules.diffusion.text_states import TextBatch
from modules.facts.chroma import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt.states"


class Chroma(FlowTransformer):
    """T5 encodes the prompt; the transformer sees its tokens and the first one of padding, as it was trained.

    diffusers' pipeline (0.42) gives the transformer its mask as numbers 0 and 1, which attention adds to its logits, so
    that padding is seen (huggingface/diffusers issue 13619). The model's own code and ComfyUI mask it.
    """

    facts = FACTS
    text_names = (PROMPT,)

    def __init__(self, config: TrainConfig, options: FlowOptions, components: FlowComponents) -> None:
        super().__init__(config, options, components)
        embedder = components.transformer.time_text_embed
        embedder.guidance_proj.register_forward_pre_hook(partial(_guidance_on_device, embedder))

    def fingerprint(self) -> str:
        """Captions were cached with their padding before."""
        return f"{super().fingerprint()} unpadded"

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        tokens, states = to_tokens(x_t), text[PROMPT]
        mask: Tensor | None = text.mask(PROMPT)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(tokens.shape[:2])], dim=1)
        with _mask_in_checkpoints(self.components.transformer, mask):
            prediction = self.model(
                hidden_states=tokens,
                timestep=sigma,
                encoder_hidden_states=states,
                txt_ids=x_t.new_zeros(states.shape[1], 3),
                img_ids=image_positions(x_t),
                attention_mask=mask,
                return_dict=False,
            )[0]
        return from_tokens(prediction, x_t.shape)

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, _, mask, *_ = pipeline.encode_prompt(
            prompt, device=device, do_classifier_free_guidance=False, max_sequence_length=self.caption_limit
        )
        return {PROMPT: states[0][mask[0].bool()]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        return {
            "prompt_embeds": prompt[PROMPT],
            "prompt_attention_mask": _all(prompt[PROMPT]),
            "negative_prompt_embeds": negative[PROMPT],
            "negative_prompt_attention_mask": _all(negative[PROMPT]),
            "guidance_scale": guidance_scale,
        }


@contextmanager
def _mask_in_checkpoints(transformer: Any, mask: Tensor | None) -> Iterator[None]:
    """With gradient checkpointing diffusers (0.42) leaves out the mask of single blocks, which get three inputs."""
    checkpoint = getattr(transformer, "_gradient_checkpointing_func", None)
    if mask is None or checkpoint is None:
        yield
        return

    def with_mask(block: Any, *inputs: Any) -> Any:
        return checkpoint(block, *inputs, mask) if len(inputs) == 3 else checkpoint(block, *inputs)

    transformer._gradient_checkpointing_func = with_mask
    try:
        yield
    finally:
        transformer._gradient_checkpointing_func = checkpoint


def _guidance_on_device(embedder: Any, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """The guidance is 0 in all steps. diffusers (0.42) embeds it on the CPU, and a GPU would wait for the copy."""
    (guidance,), device = inputs, embedder.mod_proj.device
    return (guidance if guidance.device == device else torch.zeros_like(guidance, device=device),)


def _all(states: Tensor) -> Tensor:
    """A mask bool [1, T] for states without padding."""
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
