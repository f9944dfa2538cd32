"""CLIP text encoders (Radford et al. 2021, arXiv:2103.00020): from token ids to prompt embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:  # loader workers, which need names alone, start without these models
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

TextEncoder: TypeAlias = "CLIPTextModel | CLIPTextModelWithProjection"
Layer = Literal["last", "penultimate"]

# Tensors in caches and batches are named after their encoder: "text_encoder.hidden" and so on.
HIDDEN, POOLED, TOKENS = ".hidden", ".pooled", ".tokens"


@dataclass(frozen=True)
class PromptEncoding:
    """Which hidden layer is the prompt embedding: "last", normalised (SD 1 and 2), or "penultimate", not (SDXL).

    `clip_skip` takes a layer that many further down.
    """

    layer: Layer
    clip_skip: int

    def encode(self, encoder: nn.Module, input_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Embeddings [B, N * 77, D] of `input_ids` int64 [B, N, 77], and [B, P] of encoders with a pooled projection.

        The N chunks of a prompt are encoded separately and concatenated; the pooled embedding is the first chunk's.
        """
        batch, chunks, length = input_ids.shape
        output = encoder(input_ids.flatten(0, 1), output_hidden_states=True)
        if self.layer == "penultimate":
            hidden = output.hidden_states[-2 - self.clip_skip]
        elif self.clip_skip:
            hidden = final_layer_norm(encoder)(output.hidden_states[-1 - self.clip_skip])
        else:
            hidden = output.last_hidden_state
        pooled: Tensor | None = getattr(output, "text_embeds", None)
        if pooled is not None:
            pooled = pooled.view(batch, chunks, -1)[:, 0]
        return hidden.reshape(batch, chunks * length, -1), pooled

    def freeze_unused_layers(self, encoder: TextEncoder) -> None:
        """Freeze the layers after the one that is used: they would get no gradient, which DDP treats as an error."""
        from transformers import CLIPTextModelWithProjection

        if isinstance(encoder, CLIPTextModelWithProjection):
            return  # the pooled embedding depends on all layers
        norm = final_layer_norm(encoder)
        body = getattr(encoder, "text_model", encoder)
        unused = self.clip_skip + (self.layer == "penultimate")
        layers = list(body.get_submodule("encoder.layers").children())
        for module in [*layers[len(layers) - unused :], *([norm] if self.layer == "penultimate" else [])]:
            module.requires_grad_(False)

    def max_clip_skip(self, encoder: TextEncoder) -> int:
        """The largest `clip_skip` that leaves at least one layer."""
        return int(encoder.config.num_hidden_layers) - (2 if self.layer == "penultimate" else 1)


def encode_tokens(
    conditioning: Mapping[str, Tensor],
    encoders: Mapping[str, nn.Module],
    encoding: PromptEncoding,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """`conditioning` with NAME.tokens int64 [B, N, 77] of each of `encoders` replaced by its embeddings, as `dtype`:
    NAME.hidden [B, N * 77, D] and, for encoders with a projection, NAME.pooled [B, P]."""
    result = dict(conditioning)
    for name, encoder in encoders.items():
        if name + TOKENS in result:
            hidden, pooled = encoding.encode(encoder, result.pop(name + TOKENS))
            result[name + HIDDEN] = hidden.to(dtype)
            if pooled is not None:
                result[name + POOLED] = pooled.to(dtype)
    return result


def pool_at_end_token(encoder: TextEncoder, end_token: int) -> None:
    """Let the pooled embedding be that of the first `end_token`, as OpenCLIP defines it.

    The configs of Stable Diffusion say eos_token_id 2, with which transformers (modeling_clip.py) pools at the largest
    id instead; the ids of placeholder tokens are larger than that of the end token. The config is left as it is.
    """
    body: Any = getattr(encoder, "text_model", encoder)
    body.eos_token_id = end_token


def final_layer_norm(encoder: nn.Module) -> nn.Module:
    """The norm after the last layer; some versions of transformers nest CLIP's layers in `text_model`."""
    return getattr(encoder, "text_model", encoder).get_submodule("final_layer_norm")
