"""Textual inversion embeddings (Gal et al. 2022, arXiv:2208.01618) in the format that all tools read.

For one text encoder a single tensor `emb_params` [vectors, D]; for SDXL's two `clip_l` and `clip_g`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.safetensors_file import SafetensorsFile, lazy_tensor, write_safetensors
from modules.config import ConfigError

TOKEN_KEY: Final = "modelspec.trigger_phrase"
ONE_ENCODER: Final = {"text_encoder": "emb_params"}
TWO_ENCODERS: Final = {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}


def write_embedding(
    file: Path,
    token: str,
    vectors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write the trained `vectors` [vectors, D] of each text encoder as `dtype`. Raises OSError if the disk is full."""
    names = TWO_ENCODERS if "text_encoder_2" in vectors else ONE_ENCODER
    tensors = {names[encoder]: lazy_tensor(vector, dtype) for encoder, vector in vectors.items()}
    write_safetensors(file, tensors, {**metadata, TOKEN_KEY: token})


def read_embedding(file: Path) -> tuple[str, dict[str, Tensor]]:
    """The token, and the vectors [vectors, D] of each encoder. Raises ConfigError if `file` is not an embedding."""
    with SafetensorsFile(file) as source:
        tensors = {name: source.read(name) for name in source.names}
        token = source.metadata.get(TOKEN_KEY, file.stem)
    if tensors.keys() == {"clip_l", "clip_g"}:
        return token, {encoder: _rows(file, tensors[name]) for encoder, name in TWO_ENCODERS.items()}
    if len(tensors) == 1:
        name, tensor = next(iter(tensors.items()))
        # diffusers' own scripts name the tensor after the token.
        return token if name == "emb_params" else name, {"text_encoder": _rows(file, tensor)}
    raise ConfigError(
        f"{str(file)!r} is not an embedding: it contains {', '.join(sorted(tensors)[:3])}.",
        "An embedding has one tensor, or clip_l and clip_g.",
    )


def _rows(file: Path, tensor: Tensor) -> Tensor:
    """[vectors, D], from [D] as well."""
    if tensor.dim() > 2:
        raise ConfigError(f"{str(file)!r} is not an embedding: its tensor has the shape {list(tensor.shape)}.")
    return tensor.reshape(-1, tensor.shape[-1])
