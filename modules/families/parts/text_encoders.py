"""CLIP text encoders (Radford et al. 2021, arXiv:2103.00020) as Stable Diffusion reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

TextEncoder = CLIPTextModel | CLIPTextModelWithProjection
Layer = Literal["last", "penultimate"]


@dataclass(frozen=True)
class Reading:
    """Which layer's output is the text: "last" is normalised, as SD 1 and 2 read it, "penultimate" is not (SDXL).

    `skip` so many layers before that one are left out.
    """

    layer: Layer
    skip: int

    def __call__(self, encoder: nn.Module, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """Token numbers [B, W, 77] to words [B, W * 77, D] and, of an encoder with a projection, the whole [B, P].

        Windows are encoded each for itself and joined; the whole is told by the first.
        """
        batch, windows, length = numbers.shape
        told = encoder(numbers.flatten(0, 1), output_hidden_states=True)
        if self.layer == "penultimate":
            words = told.hidden_states[-2 - self.skip]
        elif self.skip:
            words = final_layer_norm(encoder)(told.hidden_states[-1 - self.skip])
        else:
            words = told.last_hidden_state
        pooled: Tensor | None = getattr(told, "text_embeds", None)
        if pooled is not None:
            pooled = pooled.view(batch, windows, -1)[:, 0]
        return words.reshape(batch, windows * length, -1), pooled

    def freeze_unread(self, encoder: TextEncoder) -> None:
        """Layers behind the one that is read are not trained: they take part in nothing."""
        if isinstance(encoder, CLIPTextModelWithProjection):
            return  # the whole is told by all layers
        norm = final_layer_norm(encoder)
        body = getattr(encoder, "text_model", encoder)
        unread = self.skip + (self.layer == "penultimate")
        layers = list(body.get_submodule("encoder.layers").children())
        for module in [*layers[len(layers) - unread :], *([norm] if self.layer == "penultimate" else [])]:
            module.requires_grad_(False)

    def most_skipped(self, encoder: TextEncoder) -> int:
        """The largest `skip` that leaves at least one layer."""
        return int(encoder.config.num_hidden_layers) - (2 if self.layer == "penultimate" else 1)


def final_layer_norm(encoder: nn.Module) -> nn.Module:
    """The layer behind the last one; some versions of transformers keep a CLIP's layers in `text_model`."""
    return getattr(encoder, "text_model", encoder).get_submodule("final_layer_norm")


def token_table(encoder: TextEncoder) -> tuple[str, nn.Embedding]:
    """The embedding of an encoder's tokens, and its name within the encoder."""
    table = encoder.get_input_embeddings()
    return next((n, m) for n, m in encoder.named_modules() if m is table and isinstance(m, nn.Embedding))


@torch.no_grad()
def grow_table(encoder: TextEncoder, numbers: list[int], begin_from: list[int]) -> str:
    """Rows for the new tokens `numbers`, which begin as those of `begin_from`, over and over; the table's name."""
    name, table = token_table(encoder)
    if max(numbers) >= table.num_embeddings:
        encoder.resize_token_embeddings(max(numbers) + 1, mean_resizing=False)
        name, table = token_table(encoder)
    for place, number in enumerate(numbers):
        table.weight[number] = table.weight[begin_from[place % len(begin_from)]]
    return name
