"""Large text encoders whose linear layers are kept in 8 or 4 bits while captions are encoded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from modules.diffusion.quantized import QUANTIZED, QuantizedLinear, can_be_quantized, quantize_, quantized_bytes


def quantize_encoder_(encoder: nn.Module, weights: str, device: torch.device) -> None:
    """Quantise the layers of a frozen text encoder in place, their bits on `device`; with "run" nothing happens."""
    for layer in _layers(encoder, weights):
        quantize_(layer, weights, device)


def move_encoder(encoder: nn.Module, device: torch.device) -> nn.Module:
    """The encoder on `device`, with the bits of quantised layers."""
    for layer in encoder.modules():
        if isinstance(layer, QuantizedLinear):
            layer.move(device)
    return encoder.to(device)


def kept_weights(encoder: nn.Module, weights: str, dtype: torch.dtype) -> tuple[str, int]:
    """`weights`, or "run" if nothing of `encoder` is quantised, and the bytes if all else is kept as `dtype`.

    The encoder may be on the meta device.
    """
    layers = _layers(encoder, weights)
    quantized = {id(layer.weight) for layer in layers}
    rest = sum(weight.numel() for weight in encoder.parameters() if id(weight) not in quantized)
    size = rest * dtype.itemsize + sum(quantized_bytes(layer, weights) for layer in layers)
    return (weights if layers else "run"), size


def _layers(encoder: Any, weights: str) -> list[nn.Linear]:
    """Those that are quantised: not the head that predicts tokens, and none of CLIP, which is small."""
    if weights not in QUANTIZED or isinstance(encoder, CLIPTextModel | CLIPTextModelWithProjection):
        return []
    head = encoder.get_output_embeddings()
    return [
        layer
        for name, layer in encoder.named_modules()
        if layer is not head and isinstance(layer, nn.Linear) and can_be_quantized(name, layer, encoder)
    ]
