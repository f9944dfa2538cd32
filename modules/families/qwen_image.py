"""Qwen-Image (Qwen team 2025, arXiv:2508.02324): 20 B parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.transformers import transformer_qwenimage
from torch import Tensor, nn

from modules.diffusion.flow_options import GuidedFlowOptions
from modules.diffusion.latent_tokens import from_tokens, to_tokens
from modules.diffusion.text_states import TextBatch
from modules.facts.qwen_image import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt.states"


class QwenImage(FlowTransformer):
    """Qwen2.5-VL encodes the prompt, and the transformer masks padding; the autoencoder is one of videos."""

    facts = FACTS
    Options = GuidedFlowOptions
    text_names = (PROMPT,)
    max_tokens = 1024

    @classmethod
    def freeze_unused(cls, transformer: nn.Module) -> None:
        """What the last block makes of the text is not used."""
        last = f"transformer_blocks.{len(transformer.get_submodule('transformer_blocks')) - 1}"  # type: ignore[arg-type]
        for name in ("attn.to_add_out", "txt_mlp"):
            transformer.get_submodule(f"{last}.{name}").requires_grad_(False)

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        return self.velocity_by(self.model, x_t, sigma, text, guidance)

    def velocity_by(
        self, model: Callable[..., Any], x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None
    ) -> Tensor:
        """`velocity` by what takes the arguments of the transformer."""
        height, width = (side // 2 for side in x_t.shape[-2:])
        with _unused_lengths_left_out():
            prediction = model(
                hidden_states=to_tokens(x_t),
                timestep=sigma,
                guidance=guidance,
                encoder_hidden_states=text[PROMPT],
                encoder_hidden_states_mask=text.mask(PROMPT),
                img_shapes=[[(1, height, width)]] * len(x_t),
                return_dict=False,
            )[0]
        return from_tokens(prediction, x_t.shape)

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, _ = pipeline.encode_prompt(prompt, device, max_sequence_length=self.caption_limit)
        return {PROMPT: states[0]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """A guidance-distilled model takes the guidance scale, others predict twice."""
        arguments: dict[str, Any] = {"prompt_embeds": prompt[PROMPT], "prompt_embeds_mask": _all(prompt[PROMPT])}
        arguments["max_sequence_length"] = self.max_tokens
        if self.components.transformer.config["guidance_embeds"]:
            return {**arguments, "guidance_scale": guidance_scale}
        if guidance_scale > 1:
            arguments["negative_prompt_embeds"] = negative[PROMPT]
            arguments["negative_prompt_embeds_mask"] = _all(negative[PROMPT])
        return {**arguments, "true_cfg_scale": guidance_scale}


@contextmanager
def _unused_lengths_left_out() -> Iterator[None]:
    """diffusers (0.42) computes lengths of a mask that nothing uses, with a number for whose copy a GPU would wait."""
    module: Any = transformer_qwenimage
    former = module.compute_text_seq_len_from_mask
    module.compute_text_seq_len_from_mask = lambda states, mask: (states.shape[1], None, mask)
    try:
        yield
    finally:
        module.compute_text_seq_len_from_mask = former


def _all(states: Tensor) -> Tensor:
    """A mask int64 [1, T] for states without padding: without one the pipeline warns."""
    return torch.ones(states.shape[:2], dtype=torch.int64, device=states.device)
