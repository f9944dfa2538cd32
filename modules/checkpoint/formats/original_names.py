"""The names of a diffusers folder's tensors in the original layout of CompVis and Stability AI.

They follow from the configs of the components (number of blocks, layers per block), so models of any size are covered.
The other direction is in diffusers/loaders/single_file_utils.py, against which the tests check this one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from modules.config import ConfigError
from modules.diffusion.transformer_files.original_name import ComponentConfig, NameMapper, OriginalName
from modules.files import printable

_RESNET: Final = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_OUTER: Final = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_BLOCK_TENSOR: Final = re.compile(
    r"(?:(down|up)_blocks\.(\d{1,4})|(mid)_block)\.(resnets|attentions|downsamplers|upsamplers)\.(\d{1,4})\.(.+)"
)


def unet_name(name: str, config: ComponentConfig) -> OriginalName | None:
    """UNet2DConditionModel -> model.diffusion_model, where layers and samplers are numbered across all blocks."""
    for ours, theirs in _UNET_OUTER.items():
        if name.startswith(f"{ours}."):
            return OriginalName(f"model.diffusion_model.{theirs}{name.removeprefix(ours)}")
    match = _BLOCK_TENSOR.fullmatch(name)
    if match is None:
        return None
    direction, block, _, kind, index, rest = match.groups()
    original_block = _unet_block(direction, int(block or 0), kind, int(index), config)
    if kind == "resnets":
        layer, _, end = rest.partition(".")
        if layer not in _RESNET:
            return None
        rest = f"{_RESNET[layer]}.{end}"
    elif kind == "downsamplers":
        rest = rest.replace("conv.", "op.", 1)
    return OriginalName(f"model.diffusion_model.{original_block}.{rest}")


def _unet_block(direction: str | None, block: int, kind: str, index: int, config: ComponentConfig) -> str:
    layers = config.get("layers_per_block")
    if not isinstance(layers, int):
        raise ConfigError(
            f"unet/config.json: layers_per_block is {layers!r}; the original layout needs one number for all blocks."
        )
    if direction is None:  # resnet, attention, resnet
        return f"middle_block.{2 * index + (kind == 'attentions')}"
    within = int(kind == "attentions")
    if direction == "down":
        number = 1 + block * (layers + 1) + (layers if kind == "downsamplers" else index)
        return f"input_blocks.{number}.{within}"
    if kind == "upsamplers":
        types = _per_block(config, "unet", "up_block_types", block)
        return f"output_blocks.{block * (layers + 1) + layers}.{2 if 'CrossAttn' in str(types[block]) else 1}"
    return f"output_blocks.{block * (layers + 1) + index}.{within}"


def _per_block(config: ComponentConfig, component: str, name: str, block: int) -> Sequence[object]:
    """The list `name`, which has an entry for `block`. Raises ConfigError."""
    values = config.get(name)
    if not isinstance(values, list | tuple) or len(values) <= block:
        raise ConfigError(
            f"{component}/config.json: {name} is {printable(values, 80)}; its weights need a list with an entry for "
            f"each of at least {block + 1} blocks."
        )
    return values


_VAE_ATTENTION: Final = {
    "group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out",
    "query": "q", "key": "k", "value": "v", "proj_attn": "proj_out",  # in older versions of diffusers
}  # fmt: skip


def vae_name(name: str, config: ComponentConfig) -> OriginalName | None:
    """AutoencoderKL -> first_stage_model, where the decoder's blocks are numbered in reverse."""
    half, _, inner = name.partition(".")
    if half in ("quant_conv", "post_quant_conv"):
        return OriginalName(f"first_stage_model.{name}")
    if half not in ("encoder", "decoder"):
        return None
    stem = f"first_stage_model.{half}"
    if inner.startswith(("conv_in.", "conv_out.")):
        return OriginalName(f"{stem}.{inner}")
    if inner.startswith("conv_norm_out."):
        return OriginalName(f"{stem}.{inner.removeprefix('conv_')}")
    match = _BLOCK_TENSOR.fullmatch(inner)
    if match is None:
        return None
    direction, block, _, kind, index, rest = match.groups()
    if kind == "attentions":
        layer, end = rest.rsplit(".", 1)
        if direction is not None or layer not in _VAE_ATTENTION:
            return None
        square = end == "weight" and layer != "group_norm"
        return OriginalName(f"{stem}.mid.attn_1.{_VAE_ATTENTION[layer]}.{end}", "conv" if square else "unchanged")
    rest = rest.replace("conv_shortcut.", "nin_shortcut.")
    if direction is None:
        return OriginalName(f"{stem}.mid.block_{int(index) + 1}.{rest}")
    blocks = _per_block(config, "vae", "block_out_channels", int(block))
    number = int(block) if direction == "down" else len(blocks) - 1 - int(block)
    inside = f"block.{index}" if kind == "resnets" else f"{direction}sample"
    return OriginalName(f"{stem}.{direction}.{number}.{inside}.{rest}")


def clip_name(prefix: str) -> NameMapper:
    """OpenAI's CLIP: the same names below `prefix`, with the prefix text_model that transformers 5 leaves out."""

    def original_name(name: str, _: ComponentConfig) -> OriginalName | None:
        if name.endswith("position_ids"):
            return None
        inner = name.removeprefix("text_model.")
        return OriginalName(prefix + (inner if inner == "text_projection.weight" else f"text_model.{inner}"))

    return original_name


_OPEN_CLIP_OUTER: Final = {
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


def open_clip_name(prefix: str) -> NameMapper:
    """OpenCLIP, where query, key and value are one matrix, and the projection is transposed."""

    def original_name(name: str, _: ComponentConfig) -> OriginalName | None:
        if name == "text_projection.weight":
            return OriginalName(f"{prefix}text_projection", "transposed")
        inner = name.removeprefix("text_model.")
        if inner in _OPEN_CLIP_OUTER:
            return OriginalName(f"{prefix}{_OPEN_CLIP_OUTER[inner]}")
        match = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)", inner)
        if match is None:
            return None
        number, layer, end = match.groups()
        stem = f"{prefix}transformer.resblocks.{number}"
        if layer in _THIRDS:
            return OriginalName(f"{stem}.attn.in_proj_{end}", part=_THIRDS[layer])
        return OriginalName(f"{stem}.{_OPEN_CLIP_LAYER[layer]}.{end}") if layer in _OPEN_CLIP_LAYER else None

    return original_name
