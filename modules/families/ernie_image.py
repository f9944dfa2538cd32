"""ERNIE-Image (Baidu 2026): a single-stream transformer of 8 B parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from diffusers.models.transformers.transformer_ernie_image import ErnieImageSingleStreamAttnProcessor
from torch import Tensor

from modules.diffusion.padding_mask import PaddingMask
from modules.diffusion.text_states import TextBatch
from modules.facts.ernie_image import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt.states"


class _Attention(ErnieImageSingleStreamAttnProcessor):
    """Tells attention of padding what the host knows, so that it needs no mask, which keeps flash attention out."""

    padding: Sequence[int] | None = None  # of the captions that the transformer is called with now, if that is known

    def __call__(
        self, attn: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, freqs_cis: Tensor | None = None
    ) -> Tensor:
        if self.padding is not None and attention_mask is not None:
            tokens = hidden_states.shape[1]  # the image's and the caption's, padding at the end
            lengths = [tokens - padding for padding in self.padding]
            attention_mask = PaddingMask.marked(attention_mask, lengths, tokens) if any(self.padding) else None
        return super().__call__(attn, hidden_states, attention_mask, freqs_cis)


class ErnieImage(FlowTransformer):
    """Ministral 3 encodes the prompt; latents are those of FLUX.2's autoencoder."""

    facts = FACTS
    text_names = (PROMPT,)
    packed_latents = 1
    pixels_per_latent = 16
    batch_norm_eps = 1e-5  # as the pipeline (0.42) decodes; the config of the published autoencoder has another

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        states, given = text[PROMPT], text.lengths(PROMPT)
        self._attention.padding = [states.shape[1] - length for length in given]
        # one by one, because a GPU would wait for a copy of all
        lengths = torch.stack([torch.full((), length, device=x_t.device) for length in given])
        return cast(Tensor, self.model(x_t, 1000 * sigma, states, lengths, return_dict=False)[0])

    @cached_property
    def _attention(self) -> _Attention:
        """That of all layers."""
        attention = _Attention()  # type: ignore[no-untyped-call]
        for layer in self.components.transformer.layers:
            layer.self_attention.set_processor(attention)
        return attention

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        return {PROMPT: (tokens, config["text_in_dim"])}

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        pipeline.tokenizer.model_max_length = self.caption_limit  # where the pipeline truncates
        (states,) = pipeline.encode_prompt(prompt, device)
        return {PROMPT: states}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """The pipeline pads the shorter of both prompts."""
        self._attention.padding = None
        return {
            "prompt_embeds": list(prompt[PROMPT]),
            "negative_prompt_embeds": list(negative[PROMPT]),
            "guidance_scale": guidance_scale,
        }
