"""Models on the hub that people train, known without a network: their families, and how large their networks are.

Configurations are those of the models' own config.json, as far as they differ from the defaults of their diffusers and
transformers classes. Parameters of other networks that may stay frozen are in billions, rounded to 10 million.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Config = Mapping[str, Any]


@dataclass(frozen=True)
class KnownModel:
    """What is known of a model before anything of it is downloaded."""

    family: str
    networks: Mapping[str, Config]  # those that can be trained, by component
    frozen: Mapping[str, float]  # billions of parameters of the networks that may stay frozen, by component
    # large text encoders, by component: the name of the transformers class, and the configuration
    encoders: Mapping[str, tuple[str, Config]] = field(default_factory=dict)


_CLIP_L: Final = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768}
_CLIP_G: Final = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
}
_CLIP_H: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 23,
    "num_attention_heads": 16,
    "projection_dim": 512,
    "hidden_act": "gelu",
}
_CHANNELS: Final = (320, 640, 1280, 1280)
_SD1: Final = KnownModel(
    "stable_diffusion",
    {
        "unet": {"block_out_channels": _CHANNELS, "cross_attention_dim": 768, "attention_head_dim": 8},
        "text_encoder": _CLIP_L,
    },
    {"vae": 0.08, "text_encoder": 0.12},
)
_SD2: Final = KnownModel(
    "stable_diffusion",
    {
        "unet": {
            "block_out_channels": _CHANNELS,
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
        },
        "text_encoder": _CLIP_H,
    },
    {"vae": 0.08, "text_encoder": 0.34},
)
_SDXL: Final = KnownModel(
    "stable_diffusion_xl",
    {
        "unet": {
            "block_out_channels": (320, 640, 1280),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 2048,
            "attention_head_dim": (5, 10, 20),
            "transformer_layers_per_block": (1, 2, 10),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
        "text_encoder": _CLIP_L,
        "text_encoder_2": _CLIP_G,
    },
    {"vae": 0.08, "text_encoder": 0.12, "text_encoder_2": 0.69},
)
_VAE: Final = {"vae": 0.08}
_VIDEO_VAE: Final = {"vae": 0.13}
_CLIP_TEXT: Final = {"vae": 0.08, "text_encoder": 0.12}
_SD3_TEXT: Final = {"vae": 0.08, "text_encoder": 0.12, "text_encoder_2": 0.69}
_T5_XXL: Final = (
    "T5EncoderModel",
    {
        "vocab_size": 32128,
        "d_model": 4096,
        "d_kv": 64,
        "d_ff": 10240,
        "num_layers": 24,
        "num_heads": 64,
        "feed_forward_proj": "gated-gelu",
    },
)
_QWEN3_HEADS: Final = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_QWEN3_4B_TEXT: Final = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, **_QWEN3_HEADS}
_QWEN3_4B: Final = ("Qwen3ForCausalLM", {**_QWEN3_4B_TEXT, "tie_word_embeddings": True})
_QWEN3_8B: Final = (
    "Qwen3ForCausalLM",
    {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, **_QWEN3_HEADS},
)
_QWEN3_VL_4B: Final = (
    "Qwen3VLModel",
    {
        "text_config": _QWEN3_4B_TEXT,
        "vision_config": {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "out_hidden_size": 2560,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    },
)
_QWEN25_VL_7B: Final = (
    "Qwen2_5_VLForConditionalGeneration",
    {
        "text_config": {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
        },
    },
)
_MISTRAL_SMALL_3: Final = (
    "Mistral3ForConditionalGeneration",
    {
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "mistral",
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 131072,
        },
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "head_dim": 64,
            "patch_size": 14,
        },
    },
)
_Z_IMAGE: Final = KnownModel("z_image", {"transformer": {}}, _VAE, {"text_encoder": _QWEN3_4B})
_KLEIN_4B: Final = KnownModel(
    "flux2",
    {
        "transformer": {
            "num_layers": 5,
            "num_single_layers": 20,
            "num_attention_heads": 24,
            "joint_attention_dim": 7680,
            "guidance_embeds": False,
        }
    },
    _VAE,
    {"text_encoder": _QWEN3_4B},
)
_KLEIN_9B: Final = KnownModel(
    "flux2",
    {
        "transformer": {
            "num_layers": 8,
            "num_single_layers": 24,
            "num_attention_heads": 32,
            "joint_attention_dim": 12288,
            "guidance_embeds": False,
        }
    },
    _VAE,
    {"text_encoder": _QWEN3_8B},
)
_FLUX_DEV: Final = KnownModel(
    "flux", {"transformer": {"guidance_embeds": True}}, _CLIP_TEXT, {"text_encoder_2": _T5_XXL}
)
_FLUX_SCHNELL: Final = KnownModel("flux", {"transformer": {}}, _CLIP_TEXT, {"text_encoder_2": _T5_XXL})
_FLUX2_DEV: Final = KnownModel("flux2", {"transformer": {}}, _VAE, {"text_encoder": _MISTRAL_SMALL_3})
_KREA_2: Final = KnownModel("krea2", {"transformer": {}}, _VIDEO_VAE, {"text_encoder": _QWEN3_VL_4B})
_QWEN_IMAGE: Final = KnownModel("qwen_image", {"transformer": {}}, _VIDEO_VAE, {"text_encoder": _QWEN25_VL_7B})
_CHROMA: Final = KnownModel("chroma", {"transformer": {}}, _VAE, {"text_encoder": _T5_XXL})
_GEMMA_2_2B: Final[tuple[str, Config]] = ("Gemma2Model", {})
_LUMINA_2: Final = KnownModel("lumina2", {"transformer": {"cap_feat_dim": 2304}}, _VAE, {"text_encoder": _GEMMA_2_2B})


def _sd3(layers: int, **transformer: object) -> KnownModel:
    shape = {"num_layers": layers, "num_attention_heads": layers, "caption_projection_dim": 64 * layers}
    return KnownModel(
        "stable_diffusion_3", {"transformer": {**shape, **transformer}}, _SD3_TEXT, {"text_encoder_3": _T5_XXL}
    )


KNOWN_MODELS: Final[Mapping[str, KnownModel]] = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5": _SD1,
    "runwayml/stable-diffusion-v1-5": _SD1,
    "CompVis/stable-diffusion-v1-4": _SD1,
    "stabilityai/stable-diffusion-2-1": _SD2,
    "stabilityai/stable-diffusion-2-1-base": _SD2,
    "stabilityai/stable-diffusion-2-base": _SD2,
    "stabilityai/stable-diffusion-xl-base-1.0": _SDXL,
    "Tongyi-MAI/Z-Image": _Z_IMAGE,
    "Tongyi-MAI/Z-Image-Turbo": _Z_IMAGE,
    "black-forest-labs/FLUX.1-dev": _FLUX_DEV,
    "black-forest-labs/FLUX.1-Krea-dev": _FLUX_DEV,
    "black-forest-labs/FLUX.1-schnell": _FLUX_SCHNELL,
    "black-forest-labs/FLUX.2-dev": _FLUX2_DEV,
    "black-forest-labs/FLUX.2-klein-4B": _KLEIN_4B,
    "black-forest-labs/FLUX.2-klein-base-4B": _KLEIN_4B,
    "black-forest-labs/FLUX.2-klein-9B": _KLEIN_9B,
    "black-forest-labs/FLUX.2-klein-base-9B": _KLEIN_9B,
    "krea/Krea-2-Raw": _KREA_2,
    "krea/Krea-2-Turbo": _KREA_2,
    "Alpha-VLLM/Lumina-Image-2.0": _LUMINA_2,
    "Qwen/Qwen-Image": _QWEN_IMAGE,
    "Qwen/Qwen-Image-2512": _QWEN_IMAGE,
    "stabilityai/stable-diffusion-3-medium-diffusers": _sd3(24, pos_embed_max_size=192),
    "stabilityai/stable-diffusion-3.5-medium": _sd3(
        24, pos_embed_max_size=384, dual_attention_layers=tuple(range(13)), qk_norm="rms_norm"
    ),
    "stabilityai/stable-diffusion-3.5-large": _sd3(38, pos_embed_max_size=192, qk_norm="rms_norm"),
    "stabilityai/stable-diffusion-3.5-large-turbo": _sd3(38, pos_embed_max_size=192, qk_norm="rms_norm"),
    "lodestones/Chroma1-HD": _CHROMA,
    "lodestones/Chroma1-Base": _CHROMA,
}
# Models that were distilled to few steps, and those of their kind that people train instead.
_TRAINED_INSTEAD: Final[Mapping[str, str]] = {
    "tongyi-mai/z-image-turbo": "Tongyi-MAI/Z-Image",
    "black-forest-labs/flux.1-schnell": "black-forest-labs/FLUX.1-dev",
    "black-forest-labs/flux.2-klein-4b": "black-forest-labs/FLUX.2-klein-base-4B",
    "black-forest-labs/flux.2-klein-9b": "black-forest-labs/FLUX.2-klein-base-9B",
    "krea/krea-2-turbo": "krea/Krea-2-Raw",
    "stabilityai/stable-diffusion-3.5-large-turbo": "stabilityai/stable-diffusion-3.5-large",
}
_BY_LOWER_CASE: Final = {name.lower(): model for name, model in KNOWN_MODELS.items()}


def known_model(name: str) -> KnownModel | None:
    """The model of this hub name (owner/model or owner/model@revision); None if it is not known."""
    return _BY_LOWER_CASE.get(name.partition("@")[0].lower())


def trained_instead(name: str) -> str | None:
    """For a model of this hub name that was distilled to few steps, the one to train instead; None for others."""
    return _TRAINED_INSTEAD.get(name.partition("@")[0].lower())
