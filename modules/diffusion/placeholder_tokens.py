"""Textual inversion (Gal et al. 2022, arXiv:2208.01618): a placeholder token in tokenizers and text encoders."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from modules.config import ConfigError
from modules.diffusion.text_encoders import TextEncoder
from modules.diffusion.token_chunks import PromptTokenizer


def add_placeholder_token(
    tokenizer: PromptTokenizer, encoders: Mapping[str, TextEncoder], token: str, vectors: int, init: str
) -> tuple[dict[str, list[int]], list[str]]:
    """Add `token`, made of `vectors` embeddings that start as those of the words `init` ("*" if empty).

    Returns the token ids by the name of the embedding table that holds them, and warnings for the user.
    Raises ConfigError if the token is already in a vocabulary.
    """
    for name, clip_tokenizer in tokenizer.tokenizers.items():
        if token in clip_tokenizer.get_vocab() or len(tokenizer.token_ids(name, token)) == 1:
            raise ConfigError(
                f"embedding_token is {token!r}, which is already a word for the tokenizer of {name}.",
                "Choose a new one, for example <my-cat>.",
            )
    init_ids = {name: tokenizer.token_ids(name, init or "*") for name in tokenizer.tokenizers}
    warnings = []
    if (pieces := max(map(len, init_ids.values()))) > vectors:
        warnings.append(
            f"embedding_init is {init!r}, which is {pieces} tokens, but embedding_vectors is {vectors}: {token} starts "
            "from the first of them only. Use a single common word, for example cat, or more vectors."
        )
    tables = {}
    for name, ids in tokenizer.add_placeholder(token, vectors).items():
        table = _initialize_rows(encoders[name], ids, init_ids[name])
        tables[f"{name}.{table}"] = ids
    return tables, warnings


@torch.no_grad()
def _initialize_rows(encoder: TextEncoder, ids: list[int], init_ids: list[int]) -> str:
    """Copy the rows `init_ids`, repeating them, to the rows `ids` of the token embedding; returns the table's name."""
    name, table = _token_embedding(encoder)
    if max(ids) >= table.num_embeddings:
        encoder.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
        name, table = _token_embedding(encoder)
    for place, row in enumerate(ids):
        table.weight[row] = table.weight[init_ids[place % len(init_ids)]]
    return name


def _token_embedding(encoder: TextEncoder) -> tuple[str, nn.Embedding]:
    """The token embedding [vocabulary, D] and its name within the encoder."""
    table = encoder.get_input_embeddings()
    return next((n, m) for n, m in encoder.named_modules() if m is table and isinstance(m, nn.Embedding))
