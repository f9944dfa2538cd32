"""The network of latent diffusion: a UNet and the text encoders that are trained with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modules.diffusion.text_encoders import HIDDEN, POOLED, PromptEncoding, encode_tokens


class DiffusionModel(nn.Module):
    """The module that is trained: `unet`, and the trained text encoders under their own names.

    `encoder_names` are all text encoders, frozen ones too, in the order in which the UNet takes their embeddings.
    """

    def __init__(
        self,
        unet: nn.Module,
        encoders: Mapping[str, nn.Module],
        encoder_names: Sequence[str],
        encoding: PromptEncoding,
    ) -> None:
        super().__init__()
        self.unet = unet
        for name, encoder in encoders.items():
            self.add_module(name, encoder)
        self.encoder_names, self.encoding = tuple(encoder_names), encoding

    def forward(self, x_t: Tensor | None, timesteps: Tensor | None, conditioning: Mapping[str, Tensor]) -> Any:
        """The prediction [B, 4, h, w] for x_t [B, C, h, w] at `timesteps` int64 [B] or [].

        `conditioning` holds, for each encoder, NAME.hidden [B, T, D] (and NAME.pooled [B, P]), or NAME.tokens int64
        [B, N, 77] if it is trained; for SDXL also sizes [B, 6]. Without x_t, returns `conditioning` with all tokens
        encoded.
        """
        trained = {name: getattr(self, name) for name in self.encoder_names if hasattr(self, name)}
        conditioning = encode_tokens(conditioning, trained, self.encoding)
        if x_t is None:
            return conditioning
        hidden = torch.cat([conditioning[name + HIDDEN] for name in self.encoder_names], dim=-1)
        added = None
        if "sizes" in conditioning:
            pooled = conditioning[self.encoder_names[-1] + POOLED]
            added = {"text_embeds": pooled, "time_ids": conditioning["sizes"]}
        return self.unet(x_t, timesteps, encoder_hidden_states=hidden, added_cond_kwargs=added, return_dict=False)[0]

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
