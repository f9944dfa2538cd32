"""Prompt embeddings of frozen text encoders, to be cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from modules.diffusion.latents import pad_batch
from modules.diffusion.text_encoders import TOKENS, PromptEncoding, encode_tokens
from modules.diffusion.token_chunks import PromptTokenizer


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
