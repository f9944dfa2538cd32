"""The network of latent diffusion: a UNet and the text encoders that are trained with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modules.families.parts.latent_draw import HIDDEN, POOLED, TOKENS
from modules.families.parts.text_encoders import Reading


class DiffusionModel(nn.Module):
    """The one module that is trained: a UNet and the text encoders that are trained with it, under their names."""

    def __init__(self, unet: nn.Module, encoders: Mapping[str, nn.Module], order: Sequence[str], read: Reading) -> None:
        super().__init__()
        self.unet = unet
        for name, encoder in encoders.items():
            self.add_module(name, encoder)
        self.order, self.read = tuple(order), read

    def forward(self, x_t: Tensor | None, timesteps: Tensor | None, told: Mapping[str, Tensor]) -> Any:
        """The prediction [B, 4, h, w] for x_t [B, C, h, w] at `timesteps` [B] or [].

        `told` has for each encoder NAME.hidden [B, T, D] (and NAME.pooled [B, P]), or NAME.tokens [B, W, 77] for one
        that is trained; sizes [B, 6] for SDXL. Without x_t the result is `told` with all tokens read.
        """
        told = read_tokens(told, {name: getattr(self, name) for name in self.order if hasattr(self, name)}, self.read)
        if x_t is None:
            return told
        words = torch.cat([told[name + HIDDEN] for name in self.order], dim=-1)
        added = None
        if "sizes" in told:
            added = {"text_embeds": told[self.order[-1] + POOLED], "time_ids": told["sizes"]}
        return self.unet(x_t, timesteps, encoder_hidden_states=words, added_cond_kwargs=added, return_dict=False)[0]

    def blocks(self) -> list[nn.Module]:
        """The UNet's down, middle and up blocks, and the layers of the text encoders."""
        down, up = (list(self.unet.get_submodule(name).children()) for name in ("down_blocks", "up_blocks"))
        layers = [
            layer
            for name, module in self.named_modules()
            if not name.startswith("unet.") and name.endswith("encoder.layers")
            for layer in module.children()
        ]
        return [*down, self.unet.get_submodule("mid_block"), *up, *layers]


def read_tokens(
    told: Mapping[str, Tensor], encoders: Mapping[str, nn.Module], read: Reading, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """`told` with the tokens for `encoders` replaced by what these make of them, in the format `dtype`."""
    result = dict(told)
    for name, encoder in encoders.items():
        if name + TOKENS in result:
            words, pooled = read(encoder, result.pop(name + TOKENS))
            result[name + HIDDEN] = words.to(dtype)
            if pooled is not None:
                result[name + POOLED] = pooled.to(dtype)
    return result
