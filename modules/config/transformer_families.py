"""Which flow-matching family a LoRA or a transformer's file is of, from the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# Layers that only one model has, with dots as underscores: in diffusers' classes and in the models' own code, whose
# names sd-scripts and ComfyUI use (black-forest-labs/flux: img_mod.lin and modulation.lin, which FLUX.2 shares between
# blocks and Chroma does not have). The first that occurs counts.
_LAYERS: Final = (
    ("flux2", re.compile(r"to_qkv_mlp_proj|(double|single)_stream_modulation|_ff_linear_(in|out)")),
    ("chroma", re.compile(r"distilled_guidance_layer")),
    ("flux", re.compile(r"single_transformer_blocks_\d+_norm_linear|img_mod_lin|_\d+_modulation_lin")),
    ("krea2", re.compile(r"attn_to_gate|text_fusion|txtfusion|_attn_w[qkvo]_")),
    ("z_image", re.compile(r"(^|_)(layers|noise_refiner|context_refiner)_\d+_(attention_|feed_forward_w\d)")),
    ("flux or chroma", re.compile(r"single_transformer_blocks_")),
    ("qwen_image", re.compile(r"transformer_blocks_\d+_(img|txt)_(mlp|mod)")),
    ("stable_diffusion_3", re.compile(r"transformer_blocks_\d+_ff_context_net|joint_blocks_\d+_")),
)


def named_family(names: Iterable[str]) -> str:
    """The family that the layers in a LoRA or a transformer's file show; empty if none is the only one to have them."""
    flat = [name.replace(".", "_") for name in names]
    return next((family for family, layer in _LAYERS if any(layer.search(name) for name in flat)), "")
