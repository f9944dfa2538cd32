"""The names after `transformer.` that ComfyUI knows in a LoRA of each flow-matching transformer.

From Comfy-Org/ComfyUI, comfy/utils.py at 09708ea: flux_to_diffusers (also of FLUX.2 and Chroma, whose classes in
comfy/model_base.py are subclasses of Flux), mmdit_to_diffusers (Stable Diffusion 3), krea2_to_diffusers and
z_image_to_diffusers (Z-Image, and Lumina 2 as well, which has other names in diffusers). comfy/lora.py at 17358c8,
model_lora_keys_unet, takes their keys that end in .weight, without it; of Qwen-Image the names of the model's own code
(comfy/ldm/qwen_image/model.py), which are diffusers', and so of ERNIE-Image (comfy/ldm/ernie/model.py); of Wan only
those of its own code (comfy/ldm/wan/model.py), none of which is diffusers'. The ends are those of
comfy/weight_adapter/lora.py at 6f98b15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

ENDS: Final = (".lora_A.weight", ".lora_B.weight")

_JOINT: Final = (
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    *("attn.to_out.0", "attn.to_add_out"),
)
_MODULATED: Final = ("norm1.linear", "norm1_context.linear")
_NETS: Final = tuple(f"{side}.net.{layer}" for side in ("ff", "ff_context") for layer in ("0.proj", "2"))
_FLUX2_NETS: Final = tuple(f"{side}.linear_{end}" for side in ("ff", "ff_context") for end in ("in", "out"))
_TIME_TEXT: Final = tuple(
    f"time_text_embed.{name}_embedder.linear_{number}" for name in ("timestep", "text") for number in (1, 2)
)
_FLUX: Final = {
    "transformer_blocks": (*_JOINT, *_MODULATED, *_NETS, *_FLUX2_NETS),
    "single_transformer_blocks": (
        *("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp", "norm.linear", "proj_out"),
        *("attn.to_qkv_mlp_proj", "attn.to_out"),
    ),
    "": (
        *("proj_out", "x_embedder", "context_embedder", "norm_out.linear", *_TIME_TEXT, "controlnet_x_embedder"),
        *(f"time_text_embed.guidance_embedder.linear_{number}" for number in (1, 2)),
    ),
}
_SD3: Final = {
    "transformer_blocks": (
        *(*_JOINT, *_MODULATED, *_NETS),
        *("attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"),
    ),
    "": ("context_embedder", *_TIME_TEXT, "pos_embed.proj", "norm_out.linear", "proj_out"),
}
_KREA2_BLOCK: Final = (
    *(f"attn.to_{name}" for name in ("q", "k", "v", "gate", "out.0", "out")),
    *("ff.gate", "ff.up", "ff.down"),
)
_KREA2: Final = {
    "transformer_blocks": _KREA2_BLOCK,
    "text_fusion.layerwise_blocks": _KREA2_BLOCK,
    "text_fusion.refiner_blocks": _KREA2_BLOCK,
    "": (
        *("img_in", "time_embed.linear_1", "time_embed.linear_2", "time_mod_proj", "txt_in.linear_1"),
        *("txt_in.linear_2", "text_fusion.projector", "final_layer.linear"),
    ),
}
_Z_IMAGE_BLOCK: Final = (
    *("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "adaLN_modulation.0"),
    *("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
)
_Z_IMAGE: Final = {
    "layers": _Z_IMAGE_BLOCK,
    "context_refiner": _Z_IMAGE_BLOCK,
    "noise_refiner": _Z_IMAGE_BLOCK,
    "": (
        *("all_final_layer.2-1.linear", "all_final_layer.2-1.adaLN_modulation.1", "all_x_embedder.2-1"),
        *("cap_embedder.0", "cap_embedder.1", "t_embedder.mlp.0", "t_embedder.mlp.2"),
    ),
}
_QWEN_IMAGE: Final = {
    "transformer_blocks": (
        *(*_JOINT, "img_mod.1", "txt_mod.1"),
        *(f"{side}_mlp.net.{layer}" for side in ("img", "txt") for layer in ("0.proj", "2")),
    ),
    "": (
        *("img_in", "txt_in", "norm_out.linear", "proj_out"),
        *(f"time_text_embed.timestep_embedder.linear_{number}" for number in (1, 2)),
    ),
}
_ERNIE_IMAGE: Final = {
    "layers": (
        *(f"self_attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
        *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "linear_fc2")),
    ),
    "": (
        *("x_embedder.proj", "text_proj", "time_embedding.linear_1", "time_embedding.linear_2"),
        *("adaLN_modulation.1", "final_norm.linear", "final_linear"),
    ),
}
_NAMES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "FluxTransformer2DModel": _FLUX,
    "Flux2Transformer2DModel": _FLUX,
    "ChromaTransformer2DModel": _FLUX,
    "SD3Transformer2DModel": _SD3,
    "Krea2Transformer2DModel": _KREA2,
    "ZImageTransformer2DModel": _Z_IMAGE,
    "Lumina2Transformer2DModel": _Z_IMAGE,
    "QwenImageTransformer2DModel": _QWEN_IMAGE,
    "ErnieImageTransformer2DModel": _ERNIE_IMAGE,
    "WanTransformer3DModel": {},
}


def comfyui_keys(kind: str, config: Mapping[str, Any]) -> set[str]:
    """The keys of a LoRA that ComfyUI takes for a transformer of diffusers' class `kind` with this config."""
    blocks = config.get("num_layers", config.get("n_layers"))
    refiners = config.get("num_refiner_layers", config.get("n_refiner_layers"))
    counts = {
        "transformer_blocks": blocks,
        "layers": blocks,
        "single_transformer_blocks": config.get("num_single_layers"),
        "context_refiner": refiners,
        "noise_refiner": refiners,
        "text_fusion.layerwise_blocks": 2,
        "text_fusion.refiner_blocks": 2,
    }
    stems = [
        f"{part}.{number}.{name}" if part else name
        for part, names in _NAMES[kind].items()
        for number in range(counts.get(part) or 1)
        for name in names
    ]
    return {f"transformer.{stem}{end}" for stem in stems for end in ENDS}
