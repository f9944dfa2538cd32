"""Prompt embeddings of frozen text encoders, cached with an image's latents and found again by caption."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from modules.diffusion.latents import pad_batch
from modules.diffusion.text_encoders import HIDDEN, POOLED, TOKENS, PromptEncoding, encode_tokens
from modules.diffusion.token_chunks import PromptTokenizer

CAPTION_IDS = "captions"  # the cached tensor of caption ids, int64 [N]


@torch.no_grad()
def encode_captions(
    captions: Sequence[str],
    batch_size: int,
    encoders: Mapping[str, nn.Module],
    tokenizer: PromptTokenizer,
    encoding: PromptEncoding,
    dtype: torch.dtype,
) -> dict[str, dict[str, Tensor]]:
    """Embeddings by caption: NAME.hidden [T, D] and NAME.pooled [P] of each encoder, as `dtype` on the CPU.

    Always encodes `batch_size` captions at once: encoders may round differently in smaller batches.
    """
    embeddings: dict[str, dict[str, Tensor]] = {}
    unique = list(dict.fromkeys(captions))
    for start in range(0, len(unique), batch_size):
        batch = unique[start : start + batch_size]
        tokens = {}
        for name, encoder in encoders.items():
            input_ids = torch.stack([tokenizer.input_ids(name, caption) for caption in batch])
            tokens[name + TOKENS] = pad_batch(input_ids, batch_size).to(next(encoder.parameters()).device)
        encoded = {name: tensor.cpu() for name, tensor in encode_tokens(tokens, encoders, encoding, dtype).items()}
        embeddings |= {
            caption: {name: tensor[place] for name, tensor in encoded.items()} for place, caption in enumerate(batch)
        }
    return embeddings


def stack_captions(captions: Sequence[str], embeddings: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What is cached for an image with N captions: `captions` int64 [N] and its embeddings, each [N, ...]."""
    ids = torch.tensor([caption_id(caption) for caption in captions], dtype=torch.int64)
    selected = [embeddings[caption] for caption in captions]
    return {CAPTION_IDS: ids} | {name: torch.stack([each[name] for each in selected]) for name in selected[0]}


def find_caption(cached: Mapping[str, Tensor], caption: str) -> dict[str, Tensor] | None:
    """The embeddings of `caption`, each [...], from the output of `stack_captions`; None if they are not in it."""
    places = (cached[CAPTION_IDS] == caption_id(caption)).nonzero()
    if not len(places):
        return None
    place = int(places[0])
    return {name: tensor[place] for name, tensor in cached.items() if name.endswith((HIDDEN, POOLED))}


def caption_id(caption: str) -> int:
    """The first 64 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(caption.encode()).digest()[:8], "little", signed=True)
