"""Stable Diffusion XL."""

from modules.facts import FamilyFacts, KnownModel, WholeModel
from modules.facts._networks import CLIP_L

FACTS = FamilyFacts(
    about="Stable Diffusion XL by Stability AI: 2.6 B parameters (5 GB in bf16), CreativeML Open RAIL++ licence.",
    popularity=1,
    network="unet",
    pipelines=("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
    encoders={"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"},
    arguments={"add_watermarker": False},
    models={
        "stabilityai/stable-diffusion-xl-base-1.0": KnownModel(
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
                "text_encoder": CLIP_L,
                "text_encoder_2": {
                    "hidden_size": 1280,
                    "intermediate_size": 5120,
                    "num_hidden_layers": 32,
                    "num_attention_heads": 20,
                    "projection_dim": 1280,
                    "hidden_act": "gelu",
                },
            },
            {"vae": 0.08, "text_encoder": 0.12, "text_encoder_2": 0.69},
        )
    },
    whole_models={
        "stable-diffusion-xl-v1-base": WholeModel(
            "Stable Diffusion XL", "conditioner.embedders.1.", "sdxl_base_v1-0", 1024
        )
    },
    architectures=("stable-diffusion-xl",),
    code="https://github.com/Stability-AI/generative-models",
    aliases=("sdxl", "ssd", "vega"),
    simple_tuner={name: f"stabilityai/stable-diffusion-xl-{name}" for name in ("base-1.0", "base-0.9")},
)
