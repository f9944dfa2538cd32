"""From a prompt to the token ids of CLIP: chunks of 77 tokens, and placeholder tokens of textual inversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import torch
from torch import Tensor
from transformers import CLIPTokenizer

LongPrompts = Literal["truncate", "chunk"]

CHUNK_LENGTH: Final = 77  # tokens, including the start and end tokens


@dataclass(frozen=True)
class PromptTokenizer:
    """The CLIP tokenizers of a pipeline, and how prompts longer than one chunk are handled.

    Loader workers hold it, so it is picklable.
    """

    tokenizers: Mapping[str, CLIPTokenizer]  # by the name of the text encoder
    chunks: int  # of every prompt, padded if it is shorter: all samples of a batch need equal shapes
    placeholders: dict[str, list[str]] = field(default_factory=dict)  # placeholder -> the tokens that stand for it

    def input_ids(self, encoder: str, prompt: str) -> Tensor:
        """int64 [chunks, 77], each chunk start token, up to 75 tokens, end token, padding; the rest is truncated."""
        tokenizer = self.tokenizers[encoder]
        length = _chunk_length(tokenizer)
        room = length - 2
        ids = self.token_ids(encoder, prompt)[: room * self.chunks]
        rows = []
        for chunk in range(self.chunks):
            row = [tokenizer.bos_token_id, *ids[chunk * room : (chunk + 1) * room], tokenizer.eos_token_id]
            rows.append(row + [tokenizer.pad_token_id] * (length - len(row)))
        return torch.tensor(rows, dtype=torch.int64)

    def token_ids(self, encoder: str, prompt: str) -> list[int]:
        """All token ids of a prompt, without start and end tokens."""
        for placeholder, tokens in self.placeholders.items():
            prompt = prompt.replace(placeholder, " ".join(tokens))
        ids: list[int] = self.tokenizers[encoder](prompt, add_special_tokens=False, verbose=False).input_ids
        return ids

    def add_placeholder(self, token: str, vectors: int) -> dict[str, list[int]]:
        """Add `token`, which stands for TOKEN, TOKEN_1, ... (diffusers' names); returns their ids by encoder."""
        names = [token, *(f"{token}_{number}" for number in range(1, vectors))]
        for tokenizer in self.tokenizers.values():
            tokenizer.add_tokens(names)
        self.placeholders[token] = names
        return {
            encoder: cast(list[int], tokenizer.convert_tokens_to_ids(names))
            for encoder, tokenizer in self.tokenizers.items()
        }

    def truncation_warnings(self, captions: Sequence[str]) -> list[str]:
        """A sentence about the captions that are truncated; empty if none is."""
        room = (CHUNK_LENGTH - 2) * self.chunks
        long = [caption for caption in captions if len(caption.encode()) > room]
        truncated = [caption for caption in long if self._is_truncated(caption)]
        if not truncated:
            return []
        advice = "raise prompt_windows" if self.chunks > 1 else "set family_options.long_prompts to chunk"
        count = "1 text is" if len(truncated) == 1 else f"{len(truncated)} texts are"
        return [f"{count} longer than {room} tokens and truncated, for example {truncated[0][:60]!r}... ({advice})."]

    def _is_truncated(self, prompt: str) -> bool:
        return any(
            len(self.token_ids(encoder, prompt)) > (_chunk_length(tokenizer) - 2) * self.chunks
            for encoder, tokenizer in self.tokenizers.items()
        )


def _chunk_length(tokenizer: CLIPTokenizer) -> int:
    """The tokens of one chunk; a tokenizer without its tokenizer_config.json has no maximum length."""
    return min(tokenizer.model_max_length, CHUNK_LENGTH)
