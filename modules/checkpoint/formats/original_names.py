"""Where each tensor of a diffusers folder stands in the original layout of CompVis and Stability AI.

All follows from the configs of the parts (number of blocks, layers in a block), so models of any size are named.
The other direction is in diffusers/loaders/single_file_utils.py, which the tests hold against this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from modules.config import ConfigError

Form = Literal["as_is", "conv", "transposed"]
PartConfig = Mapping[str, object]  # the config.json of one part


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: under `name`, in the form `form`, or as one of three thirds on top of each other."""

    name: str
    form: Form = "as_is"  # "conv": a 1 × 1 convolution there, a linear layer in diffusers
    third: int | None = None


Places = Callable[[str, PartConfig], Place | None]  # None: the original layout has no place for this tensor

_RESNET: Final = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_ENDS: Final = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_IN_A_BLOCK: Final = re.compile(
    r"(?:(down|up)_blocks\.(\d+)|(mid)_block)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)"
)


def unet_place(name: str, config: PartConfig) -> Place | None:
    """UNet2DConditionModel -> model.diffusion_model. Counting there runs over all blocks, each with its sampler."""
    for ours, theirs in _UNET_ENDS.items():
        if name.startswith(f"{ours}."):
            return Place(f"model.diffusion_model.{theirs}{name.removeprefix(ours)}")
    match = _IN_A_BLOCK.fullmatch(name)
    if match is None:
        return None
    direction, block, _, kind, place, rest = match.groups()
    where = _unet_block(direction, int(block or 0), kind, int(place), config)
    if kind == "resnets":
        layer, _, end = rest.partition(".")
        if layer not in _RESNET:
            return None
        rest = f"{_RESNET[layer]}.{end}"
    elif kind == "downsamplers":
        rest = rest.replace("conv.", "op.", 1)
    return Place(f"model.diffusion_model.{where}.{rest}")


def _unet_block(direction: str | None, block: int, kind: str, place: int, config: PartConfig) -> str:
    layers = config["layers_per_block"]
    if not isinstance(layers, int):
        raise ConfigError(
            f"unet/config.json: layers_per_block is {layers!r}; the original layout knows one number for all blocks."
        )
    if direction is None:  # resnet, attention, resnet
        return f"middle_block.{2 * place + (kind == 'attentions')}"
    within = int(kind == "attentions")
    if direction == "down":
        number = 1 + block * (layers + 1) + (layers if kind == "downsamplers" else place)
        return f"input_blocks.{number}.{within}"
    if kind == "upsamplers":
        types = config["up_block_types"]
        assert isinstance(types, list | tuple)
        return f"output_blocks.{block * (layers + 1) + layers}.{2 if 'CrossAttn' in str(types[block]) else 1}"
    return f"output_blocks.{block * (layers + 1) + place}.{within}"


_VAE_ATTENTION: Final = {
    "group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out",
    "query": "q", "key": "k", "value": "v", "proj_attn": "proj_out",  # as older diffusers called them
}  # fmt: skip


def vae_place(name: str, config: PartConfig) -> Place | None:
    """AutoencoderKL -> first_stage_model. The decoder's blocks are counted from the other end there."""
    half, _, inner = name.partition(".")
    if half in ("quant_conv", "post_quant_conv"):
        return Place(f"first_stage_model.{name}")
    if half not in ("encoder", "decoder"):
        return None
    stem = f"first_stage_model.{half}"
    if inner.startswith(("conv_in.", "conv_out.")):
        return Place(f"{stem}.{inner}")
    if inner.startswith("conv_norm_out."):
        return Place(f"{stem}.{inner.removeprefix('conv_')}")
    match = _IN_A_BLOCK.fullmatch(inner)
    if match is None:
        return None
    direction, block, _, kind, place, rest = match.groups()
    if kind == "attentions":
        layer, end = rest.rsplit(".", 1)
        if direction is not None or layer not in _VAE_ATTENTION:
            return None
        square = end == "weight" and layer != "group_norm"
        return Place(f"{stem}.mid.attn_1.{_VAE_ATTENTION[layer]}.{end}", "conv" if square else "as_is")
    rest = rest.replace("conv_shortcut.", "nin_shortcut.")
    if direction is None:
        return Place(f"{stem}.mid.block_{int(place) + 1}.{rest}")
    blocks = config["block_out_channels"]
    assert isinstance(blocks, list | tuple)
    number = int(block) if direction == "down" else len(blocks) - 1 - int(block)
    inside = f"block.{place}" if kind == "resnets" else f"{direction}sample"
    return Place(f"{stem}.{direction}.{number}.{inside}.{rest}")


def clip_place(prefix: str) -> Places:
    """OpenAI's CLIP: the same names below `prefix`, with the outer name that transformers 5 has left out."""

    def place(name: str, _: PartConfig) -> Place | None:
        if name.endswith("position_ids"):
            return None
        inner = name.removeprefix("text_model.")
        return Place(prefix + (inner if inner == "text_projection.weight" else f"text_model.{inner}"))

    return place


_OPEN_CLIP_ENDS: Final = {
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}
_OPEN_CLIP_LAYER: Final = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_THIRDS: Final = {"self_attn.q_proj": 0, "self_attn.k_proj": 1, "self_attn.v_proj": 2}


def open_clip_place(prefix: str) -> Places:
    """OpenCLIP: query, key and value are one matrix there, and the projection is multiplied from the other side."""

    def place(name: str, _: PartConfig) -> Place | None:
        if name == "text_projection.weight":
            return Place(f"{prefix}text_projection", "transposed")
        inner = name.removeprefix("text_model.")
        if inner in _OPEN_CLIP_ENDS:
            return Place(f"{prefix}{_OPEN_CLIP_ENDS[inner]}")
        match = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)", inner)
        if match is None:
            return None
        number, layer, end = match.groups()
        stem = f"{prefix}transformer.resblocks.{number}"
        if layer in _THIRDS:
            return Place(f"{stem}.attn.in_proj_{end}", third=_THIRDS[layer])
        return Place(f"{stem}.{_OPEN_CLIP_LAYER[layer]}.{end}") if layer in _OPEN_CLIP_LAYER else None

    return place
