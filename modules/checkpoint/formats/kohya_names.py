"""Module names in kohya's LoRA files, which replace dots by underscores, and their names in diffusers.

kohya's scripts train Stable Diffusion 1 and 2 with diffusers' UNet, but SDXL with Stability AI's own, so files for SDXL
have the names of the original layout: https://github.com/kohya-ss/sd-scripts, library/sdxl_original_unet.py, and
its table to diffusers' names in networks/lora_diffusers.py.
"""

from __future__ import annotations

import re
from typing import Final

from modules.checkpoint.formats.original_names import unet_name
from modules.diffusion.transformer_files.original_name import ComponentConfig

# Parts of module names that contain underscores themselves.
_WORDS: Final = (
    "time_emb_proj", "time_embedding", "add_embedding", "transformer_blocks", "down_blocks", "up_blocks", "mid_block",
    "conv_shortcut", "conv_in", "conv_out", "proj_in", "proj_out", "to_out", "to_q", "to_k", "to_v", "linear_1",
    "linear_2", "text_model", "text_projection", "self_attn", "q_proj", "k_proj", "v_proj", "out_proj",
    "token_embedding", "position_embedding", "final_layer_norm",
)  # fmt: skip
_WORD_OR_UNDERSCORE: Final = re.compile(rf"(?<![^_])({'|'.join(_WORDS)})(?![^_])|_")

# diffusers (loaders/lora_conversion_utils.py) recognises these only under Stability AI's name.
_ALWAYS_ORIGINAL: Final = {"add_embedding.linear_1": "label_emb_0_0", "add_embedding.linear_2": "label_emb_0_2"}

# The part of the config of SDXL's UNet that determines its original names, and the modules that it has.
_SDXL: Final[ComponentConfig] = {
    "layers_per_block": 2,
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
}
_SDXL_MODULE: Final = re.compile(
    r"conv_in|conv_out|(time|add)_embedding\.linear_[12]"
    r"|mid_block\.(resnets\.[01]|attentions\.0)\..+"
    r"|down_blocks\.([012]\.resnets\.[01]|[12]\.attentions\.[01]|[01]\.downsamplers\.0)\..+"
    r"|up_blocks\.([012]\.resnets\.[012]|[01]\.attentions\.[012]|[01]\.upsamplers\.0)\..+"
)
_ORIGINAL: Final = {
    **{theirs: ours for ours, theirs in _ALWAYS_ORIGINAL.items()},
    "time_embed_0": "time_embedding.linear_1",
    "time_embed_2": "time_embedding.linear_2",
    "input_blocks_0_0": "conv_in",
    "out_2": "conv_out",
}
_ORIGINAL_BLOCK: Final = re.compile(r"(input|middle|output)_blocks?_([0-9]{1,3})_(?:([0-9])_)?(.+)")
_ORIGINAL_LAYER: Final = {
    "in_layers_2": "conv1",
    "out_layers_3": "conv2",
    "emb_layers_1": "time_emb_proj",
    "skip_connection": "conv_shortcut",
}
_LAYERS_PER_BLOCK: Final = 3  # in SDXL: two resnets and the down- or upsampler


def to_kohya(module: str) -> str | None:
    """ "down_blocks.0.attentions.1.proj_in" -> "down_blocks_0_attentions_1_proj_in"; None if that is ambiguous."""
    if module in _ALWAYS_ORIGINAL:
        return _ALWAYS_ORIGINAL[module]
    joined = module.replace(".", "_")
    return joined if from_kohya(joined) == module else None


def to_stability(module: str) -> str | None:
    """The same with Stability AI's names; None if SDXL's UNet has no such module."""
    original = unet_name(f"{module}.weight", _SDXL) if _SDXL_MODULE.fullmatch(module) else None
    if original is None:
        return None
    joined = original.name.removeprefix("model.diffusion_model.").removesuffix(".weight").replace(".", "_")
    return joined if from_kohya(joined) == module else None


def from_kohya(joined: str) -> str:
    """The diffusers name of a module from either of these."""
    if joined in _ORIGINAL:
        return _ORIGINAL[joined]
    block = _ORIGINAL_BLOCK.fullmatch(joined)
    if block is not None:
        return _diffusers_block(block)
    return _WORD_OR_UNDERSCORE.sub(lambda match: match[1] or ".", joined)


def _diffusers_block(match: re.Match[str]) -> str:
    side, number, within, rest = match[1], int(match[2]), match[3], match[4]
    if side == "middle":  # resnet, attention, resnet
        stem = "mid_block.attentions.0" if number == 1 else f"mid_block.resnets.{number // 2}"
        return f"{stem}.{_layer(rest)}"
    down = side == "input"
    block, layer = divmod(number - down, _LAYERS_PER_BLOCK)
    stem = f"{'down' if down else 'up'}_blocks.{block}"
    if rest == "op":
        return f"{stem}.downsamplers.0.conv"
    if rest == "conv":
        return f"{stem}.upsamplers.0.conv"
    return f"{stem}.{'resnets' if within == '0' else 'attentions'}.{layer}.{_layer(rest)}"


def _layer(rest: str) -> str:
    return _ORIGINAL_LAYER.get(rest) or _WORD_OR_UNDERSCORE.sub(lambda match: match[1] or ".", rest)
