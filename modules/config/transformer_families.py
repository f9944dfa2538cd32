"""Which flow-matching model a LoRA or a transformer's file is of, from the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

# Layers that only one model has, with dots as underscores: in diffusers' classes and in the models' own code, whose
# names sd-scripts and ComfyUI use (black-forest-labs/flux: img_mod.lin and modulation.lin, which FLUX.2 shares between
# blocks and Chroma does not have). The first that occurs counts.
_LAYERS: Final = (
    ("flux2", re.compile(r"to_qkv_mlp_proj|(double|single)_stream_modulation|_ff_linear_(in|out)")),
    ("chroma", re.compile(r"distilled_guidance_layer")),
    ("flux", re.compile(r"single_transformer_blocks_\d+_norm_linear|img_mod_lin|_\d+_modulation_lin")),
    ("krea2", re.compile(r"attn_to_gate|text_fusion|txtfusion|_attn_w[qkvo]_")),
    ("lumina2", re.compile(r"(layers|_refiner)_\d+_(attn_to_|feed_forward_linear_|adaLN_modulation_1)")),
    ("z_image", re.compile(r"(^|_)(layers|noise_refiner|context_refiner)_\d+_(attention_|feed_forward_w\d)")),
    ("flux or chroma", re.compile(r"single_transformer_blocks_")),
    ("qwen_image", re.compile(r"transformer_blocks_\d+_(img|txt)_(mlp|mod)")),
    ("stable_diffusion_3", re.compile(r"transformer_blocks_\d+_ff_context_net|joint_blocks_\d+_")),
)
# In the model's own code and in diffusers; its rows are the width of FLUX.2, with which its variants differ.
_FIRST_LAYER: Final = ("img_in.weight", "x_embedder.weight")
_KLEIN_SIZES: Final = {3072: "4B", 4096: "9B"}


def named_family(names: Iterable[str]) -> str:
    """The family that the layers in a LoRA or a transformer's file show; empty if none is the only one to have them."""
    flat = [name.replace(".", "_") for name in names]
    return next((family for family, layer in _LAYERS if any(layer.search(name) for name in flat)), "")


def hub_model_of(shapes: Mapping[str, Sequence[int]], file_name: str) -> str:
    """The model on the hub that a transformer's file lacks only the transformer of; empty if none is known.

    `shapes` are those of its tensors. Models whose transformers have the same shapes are told apart by the file's name.
    """
    name = file_name.lower()
    match named_family(shapes):
        case "flux":
            if not _has(shapes, "guidance_in.", "guidance_embedder."):
                return "black-forest-labs/FLUX.1-schnell"
            return "black-forest-labs/FLUX.1-Krea-dev" if "krea" in name else "black-forest-labs/FLUX.1-dev"
        case "flux2":
            width = next((shape[0] for each, shape in shapes.items() if each.endswith(_FIRST_LAYER)), 0)
            if width not in _KLEIN_SIZES:
                return "black-forest-labs/FLUX.2-dev"
            return f"black-forest-labs/FLUX.2-klein-{'base-' if 'base' in name else ''}{_KLEIN_SIZES[width]}"
        case "chroma":
            return "lodestones/Chroma1-Base" if "base" in name else "lodestones/Chroma1-HD"
        case "stable_diffusion_3":
            if any(".37." in each for each in shapes):
                return f"stabilityai/stable-diffusion-3.5-large{'-turbo' if 'turbo' in name else ''}"
            version = "3.5-medium" if _has(shapes, ".attn2.") else "3-medium-diffusers"
            return f"stabilityai/stable-diffusion-{version}"
        case "z_image":
            return "Tongyi-MAI/Z-Image-Turbo" if "turbo" in name else "Tongyi-MAI/Z-Image"
        case "lumina2":
            return "Alpha-VLLM/Lumina-Image-2.0"
        case "krea2":
            return "krea/Krea-2-Turbo" if "turbo" in name else "krea/Krea-2-Raw"
        case "qwen_image":
            return "Qwen/Qwen-Image-2512" if "2512" in name else "Qwen/Qwen-Image"
    return ""


def _has(names: Iterable[str], *parts: str) -> bool:
    return any(part in name for name in names for part in parts)
