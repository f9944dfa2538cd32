"""Captions as frozen text encoders read them, kept beside a picture's latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from modules.families.parts.diffusion_model import read_tokens
from modules.families.parts.latent_draw import TOKENS, TOLD, caption_number
from modules.families.parts.latents import filled
from modules.families.parts.prompts import Prompts
from modules.families.parts.text_encoders import Reading


@torch.no_grad()
def read_captions(
    captions: Sequence[str],
    size: int,
    encoders: Mapping[str, nn.Module],
    prompts: Prompts,
    read: Reading,
    dtype: torch.dtype,
) -> dict[str, dict[str, Tensor]]:
    """By caption what the encoders make of it, NAME.hidden [T, D] and NAME.pooled [P], on the CPU.

    Always `size` at once: with other numbers of captions, encoders may round otherwise.
    """
    texts: dict[str, dict[str, Tensor]] = {}
    different = list(dict.fromkeys(captions))
    for begin in range(0, len(different), size):
        several = different[begin : begin + size]
        tokens = {}
        for name, encoder in encoders.items():
            numbers = torch.stack([prompts.numbers(name, caption) for caption in several])
            tokens[name + TOKENS] = filled(numbers, size).to(next(encoder.parameters()).device)
        told = {name: tensor.cpu() for name, tensor in read_tokens(tokens, encoders, read, dtype).items()}
        texts |= {one: {name: tensor[place] for name, tensor in told.items()} for place, one in enumerate(several)}
    return texts


def text_to_keep(captions: Sequence[str], texts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """`captions` int64 [N], and for a picture's N captions what was read of them, each [N, ...]."""
    numbers = torch.tensor([caption_number(caption) for caption in captions], dtype=torch.int64)
    told = [texts[caption] for caption in captions]
    return {TOLD: numbers} | {name: torch.stack([one[name] for one in told]) for name in told[0]}
