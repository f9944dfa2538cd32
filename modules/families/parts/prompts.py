"""From a prompt to the numbers that text encoders read: windows of 77 tokens, and words learned by this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import torch
from torch import Tensor
from transformers import CLIPTokenizer

LongPrompts = Literal["truncate", "chunk"]

WINDOW: Final = 77


@dataclass(frozen=True)
class Prompts:
    """The tokenizers of a family and what is done with a prompt that is longer than their window.

    Held by loader workers, so it is picklable. `learned` maps a new word to the tokens that stand for it.
    """

    tokenizers: Mapping[str, CLIPTokenizer]  # by the name of the encoder that reads the numbers
    windows: int  # of every prompt, filled up where it is shorter: all samples of a batch have as many
    learned: dict[str, list[str]] = field(default_factory=dict)

    def numbers(self, encoder: str, prompt: str) -> Tensor:
        """int64 [windows, 77]: begin, up to 75 tokens, end, filling; what does not fit is cut off."""
        tokenizer = self.tokenizers[encoder]
        length = _window(tokenizer)
        room = length - 2
        told = self.tokens(encoder, prompt)[: room * self.windows]
        rows = []
        for window in range(self.windows):
            words = told[window * room : (window + 1) * room]
            row = [tokenizer.bos_token_id, *words, tokenizer.eos_token_id]
            rows.append(row + [tokenizer.pad_token_id] * (length - len(row)))
        return torch.tensor(rows, dtype=torch.int64)

    def cut(self, prompt: str) -> int:
        """How many tokens of a prompt are not read."""
        counts = (
            len(self.tokens(encoder, prompt)) - (_window(tokenizer) - 2) * self.windows
            for encoder, tokenizer in self.tokenizers.items()
        )
        return max(0, *counts)

    def learn(self, token: str, vectors: int) -> dict[str, list[int]]:
        """New tokens for the word `token` (TOKEN, TOKEN_1, ... as diffusers names them): their numbers by encoder."""
        names = [token, *(f"{token}_{number}" for number in range(1, vectors))]
        for tokenizer in self.tokenizers.values():
            tokenizer.add_tokens(names)
        self.learned[token] = names
        return {
            encoder: cast(list[int], tokenizer.convert_tokens_to_ids(names))
            for encoder, tokenizer in self.tokenizers.items()
        }

    def tokens(self, encoder: str, prompt: str) -> list[int]:
        """The numbers of a whole prompt, without begin and end."""
        for word, names in self.learned.items():
            prompt = prompt.replace(word, " ".join(names))
        numbers: list[int] = self.tokenizers[encoder](prompt, add_special_tokens=False, verbose=False).input_ids
        return numbers


def _window(tokenizer: CLIPTokenizer) -> int:
    """How many tokens CLIP reads; a tokenizer without its tokenizer_config.json names no end."""
    return min(tokenizer.model_max_length, WINDOW)
