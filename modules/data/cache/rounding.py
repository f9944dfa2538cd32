"""Latents in half precision: what `cache_precision` makes of encoded images before they are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from modules.config import TrainingError

_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def round_latents(
    encoded: Sequence[Mapping[str, Tensor]], names: Collection[str], precision: str
) -> Sequence[Mapping[str, Tensor]]:
    """The entries with their latents rounded to the nearest number of `precision` (fp32, bf16 or fp16).

    `names` as in `Family.latent_names`. Raises TrainingError if a latent is beyond the largest number of fp16.
    """
    dtype = _DTYPES.get(precision)
    if dtype is None:
        return encoded
    return [
        {name: _rounded(tensor, dtype) if name.partition(".")[0] in names else tensor for name, tensor in entry.items()}
        for entry in encoded
    ]


def _rounded(latents: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = latents.to(dtype)
    if not bool(rounded.isfinite().all()):
        limit = torch.finfo(dtype).max
        raise TrainingError(
            f"cache_precision is fp16, which ends at {limit:,.0f}, but latents of an image reach "
            f"{float(latents.abs().max()):,.0f}.",
            "Set cache_precision to bf16 or fp32.",
        )
    return rounded
