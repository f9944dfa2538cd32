"""Caption embeddings trained from scratch: words hashed to rows of a table, so no tokenizer and no download."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn


class CaptionEmbedding(ModelMixin, ConfigMixin):  # type: ignore[misc]  # as diffusers' own classes do
    """Token ids [B, T] to one vector per word [B, T, C], each with a learned positional embedding.

    The names `words` and `places` are keys of saved models.
    """

    # Pass arguments by keyword: diffusers leaves positional ones out of config.json.
    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(self, *, vocabulary: int, tokens: int, channels: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.words = nn.Embedding(vocabulary, channels, padding_idx=0)  # padding adds nothing to the sum
        self.places = nn.Embedding(tokens, channels)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the words with their positions [B, T, C], and the sum of the words alone [B, C]."""
        words = self.words(tokens)
        return words + self.places.weight, words.sum(dim=1)


def tokenize(caption: str, *, tokens: int, vocabulary: int) -> Tensor:
    """int64 [tokens]: each word's row in a table of `vocabulary` rows, padded with 0."""
    words = re.findall(r"\w+", caption.lower())[:tokens]
    rows = [_hash_word(word, vocabulary) for word in words]
    return torch.tensor(rows + [0] * (tokens - len(rows)))


@lru_cache(maxsize=1 << 14)  # the same words come again and again
def _hash_word(word: str, vocabulary: int) -> int:
    """1 to vocabulary - 1, the same in every process (Python's own hash is not)."""
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)
