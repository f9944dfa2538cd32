"""Stable Diffusion 1 and 2."""

from dataclasses import replace

from modules.facts import FamilyFacts, KnownModel, WholeModel
from modules.facts._networks import CLIP_L, CLIP_TEXT

_CHANNELS = (320, 640, 1280, 1280)
_V1 = KnownModel(
    {
        "unet": {"block_out_channels": _CHANNELS, "cross_attention_dim": 768, "attention_head_dim": 8},
        "text_encoder": CLIP_L,
    },
    CLIP_TEXT,
)
_V2 = KnownModel(
    {
        "unet": {
            "block_out_channels": _CHANNELS, "cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
        },
        "text_encoder": {
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16,
            "projection_dim": 512, "hidden_act": "gelu",
        },
    },
    {"vae": 0.08, "text_encoder": 0.34},
)  # fmt: skip

FACTS = FamilyFacts(
    about="Stable Diffusion 1 and 2: 0.9 B parameters (1.7 GB in bf16), CreativeML Open RAIL licences.",
    popularity=4,
    network="unet",
    resolution=512,
    pipelines=("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"),
    encoders={"text_encoder": "tokenizer"},
    arguments={"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False},
    models={
        "stable-diffusion-v1-5/stable-diffusion-v1-5": _V1,
        "runwayml/stable-diffusion-v1-5": _V1,
        "CompVis/stable-diffusion-v1-4": _V1,
        "stabilityai/stable-diffusion-2-1": replace(_V2, resolution=768),
        "stabilityai/stable-diffusion-2-1-base": _V2,
        "stabilityai/stable-diffusion-2-base": _V2,
    },
    whole_models={
        "stable-diffusion-v1": WholeModel("Stable Diffusion 1", "cond_stage_model.transformer.", "sd_v1", 512),
        "stable-diffusion-v2-512": WholeModel("Stable Diffusion 2", "cond_stage_model.model.", "sd_v2", 512),
        "stable-diffusion-v2-768-v": WholeModel("Stable Diffusion 2", "cond_stage_model.model.", "sd_v2_v", 768),
    },
    architectures=("stable-diffusion",),
    code="https://github.com/CompVis/stable-diffusion",
    aliases=("sd1", "sd15", "sd2", "sd1x", "sd2x", "legacy"),
)
