"""Lumina-Image 2.0 (Qin et al. 2025, arXiv:2503.21758): text and image in one sequence, 2.6 B parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from modules.config import TrainConfig
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.flow_pipeline import FlowComponents
from modules.diffusion.padding_mask import PaddingMask
from modules.diffusion.text_states import TextBatch
from modules.facts.lumina2 import FACTS
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt.states"
# Lumina2Pipeline's; between it and the caption stands SEPARATOR
SYSTEM_PROMPT = (
    "You are an assistant designed to generate superior images with the superior degree of image-text alignment based "
    "on textual prompts or user prompts."
)
SEPARATOR = " <Prompt Start> "


class _CaptionMask:
    """What the transformer asks of its mask, so that the host reads no lengths from a GPU, and attention has none
    where nothing is padded. diffusers (0.42) leaves it out there as well, but not among the captions alone."""

    def __init__(self, text: TextBatch) -> None:
        self.shape = text[PROMPT].shape[:2]
        self._lengths = np.array(text.lengths(PROMPT))
        self._mask = text.mask(PROMPT)

    def sum(self, dim: int) -> NDArray[np.int64]:
        """The lengths [B], which it asks for along dimension 1."""
        assert dim == 1, "the tokens"
        return self._lengths

    def bool(self) -> _CaptionMask:
        """As it is."""
        return self

    def view(self, *shape: int) -> Tensor | None:
        """What attention gets."""
        return None if self._mask is None else self._mask.view(*shape)


def _mark_padding(lengths: Sequence[int], _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The transformer makes the mask of captions and images on its own."""
    states, mask, *others = inputs
    return None if mask is None else (states, PaddingMask.marked(mask, lengths, mask.shape[1]), *others)


class Lumina2(FlowTransformer):
    """Prompts are encoded by Gemma 2, after a system prompt; the transformer masks their padding."""

    facts = FACTS
    text_names = (PROMPT,)
    max_tokens = 256
    packed_latents = 1

    def __init__(self, config: TrainConfig, options: FlowOptions, components: FlowComponents) -> None:
        super().__init__(config, options, components)
        lengths = list[int]()  # of the sequences of caption and image in the latest forward
        transformer = components.transformer
        transformer.rope_embedder.register_forward_hook(lambda *given: lengths.__setitem__(slice(None), given[2][-1]))
        for layer in transformer.layers:
            layer.register_forward_pre_hook(partial(_mark_padding, lengths))

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        """The transformer counts time from noise, 0, to the image, 1, and predicts x_0 - noise."""
        rope = self.components.transformer.rope_embedder  # copies its tables to the device in each forward
        rope.freqs_cis = [table.to(x_t.device) for table in rope.freqs_cis]
        out = self.model(x_t, 1 - sigma, text[PROMPT], _CaptionMask(text), return_dict=False)[0]
        return cast(Tensor, -out)

    @classmethod
    def text_shapes(cls, config: Mapping[str, Any], tokens: int) -> Mapping[str, tuple[int, ...]]:
        return {PROMPT: (tokens, config["cap_feat_dim"])}

    @classmethod
    def covered_side(cls, config: Mapping[str, Any]) -> int:
        _, *sides = config["axes_lens"]
        return cls.size_step * int(min(sides))

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, mask, _, _ = pipeline.encode_prompt(
            prompt,
            do_classifier_free_guidance=False,
            device=device,
            system_prompt=SYSTEM_PROMPT,
            max_sequence_length=self.caption_limit,
        )
        return {PROMPT: states[0, : int(mask.sum())]}

    def encode_negative_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        """Without the system prompt, as the pipeline does; the model's training replaces whole prompts by nothing."""
        states, mask = pipeline._get_gemma_prompt_embeds(prompt, device, self.caption_limit)
        return {PROMPT: states[0, : int(mask.sum())]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """Both are padded to the same length, which the pipeline asks for."""
        arguments: dict[str, Any] = {"guidance_scale": guidance_scale}
        for prefix, text in (("", prompt), ("negative_", negative)):
            states = text[PROMPT]
            padding = self.caption_limit - states.shape[1]
            arguments[f"{prefix}prompt_embeds"] = pad(states, (0, 0, 0, padding))
            arguments[f"{prefix}prompt_attention_mask"] = pad(
                torch.ones(states.shape[:2], dtype=torch.int64, device=states.device), (0, padding)
            )
        return arguments

    def count_tokens(self, caption: str) -> int:
        return super().count_tokens(SYSTEM_PROMPT + SEPARATOR + caption)
