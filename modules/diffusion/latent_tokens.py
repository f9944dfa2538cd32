"""Latents as the sequence of tokens that transformers of patches take, and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def to_tokens(latents: Tensor, patch: int = 2) -> Tensor:
    """[B, C, h, w] to [B, h w / patch^2, C patch^2], the channels of a patch in the order (C, row, column)."""
    return nn.functional.pixel_unshuffle(latents, patch).flatten(2).transpose(1, 2)


def from_tokens(tokens: Tensor, size: torch.Size, patch: int = 2) -> Tensor:
    """The latents [B, C, h, w] of `to_tokens`; `size` ends with h, w."""
    height, width = size[-2] // patch, size[-1] // patch
    return nn.functional.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, (height, width)), patch)


def image_positions(latents: Tensor, first: int = 0) -> Tensor:
    """(`first`, row, column) of each 2 x 2 patch of latents [B, C, h, w]: [h w / 4, 3]."""
    ranges = ((first, first + 1), (0, latents.shape[2] // 2), (0, latents.shape[3] // 2))
    places = [torch.arange(start, end, device=latents.device) for start, end in ranges]
    return torch.cartesian_prod(*places).to(latents.dtype)
