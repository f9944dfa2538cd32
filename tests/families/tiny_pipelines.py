"""Stable Diffusion pipelines of a few thousand random weights, on disk in the form in which real ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, EulerDiscreteScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from modules.diffusion.quiet_libraries import quiet_libraries

with quiet_libraries():
    from diffusers import StableDiffusionInpaintPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline

WIDTH = 16  # of the text encoders
WIDE = 24  # of SDXL's second one: diffusers distinguishes the two by it
CLIP_WINDOW = 77
NOISE: dict[str, object] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "steps_offset": 1,
}
TINY_VAE: dict[str, Any] = {  # four latent channels, sides divided by 8
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (4, 4, 8, 8),
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 4,
    "sample_size": 64,
}
WORDS = ("red", "green", "blue", "disc", "square", "circle", "number", "cat", "dog", "photo")


def tiny_sd(
    folder: Path, *, seed: int = 0, prediction_type: str = "epsilon", channels: int = 4, version: int = 1
) -> Path:
    """A StableDiffusionPipeline in `folder`; with 9 `channels` a StableDiffusionInpaintPipeline. Images of 64 px."""
    hidden_act = "quick_gelu" if version == 1 else "gelu"  # version 2 has OpenCLIP's text encoder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind: Any = StableDiffusionPipeline if channels == 4 else StableDiffusionInpaintPipeline
        pipeline = kind(
            vae=AutoencoderKL(**TINY_VAE, scaling_factor=0.18215),
            text_encoder=CLIPTextModel(clip_config(clip_tokenizer(), hidden_act=hidden_act)),
            tokenizer=clip_tokenizer(),
            unet=_unet(in_channels=channels, cross_attention_dim=WIDTH, use_linear_projection=version == 2),
            scheduler=DDIMScheduler(
                **NOISE, clip_sample=False, set_alpha_to_one=False, prediction_type=prediction_type
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    pipeline.save_pretrained(folder)
    return folder


def tiny_sdxl(folder: Path, *, seed: int = 0, prediction_type: str = "epsilon") -> Path:
    """A StableDiffusionXLPipeline in `folder`, both text encoders included. Images of 64 px."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline: Any = StableDiffusionXLPipeline(
            vae=AutoencoderKL(**TINY_VAE, scaling_factor=0.13025),
            text_encoder=CLIPTextModel(clip_config(clip_tokenizer())),
            text_encoder_2=CLIPTextModelWithProjection(clip_config(clip_tokenizer(pad="!"), WIDE, "gelu")),
            tokenizer=clip_tokenizer(),
            tokenizer_2=clip_tokenizer(pad="!"),
            unet=_unet(
                cross_attention_dim=WIDTH + WIDE,
                addition_embed_type="text_time",
                addition_time_embed_dim=8,
                projection_class_embeddings_input_dim=6 * 8 + WIDTH,
                use_linear_projection=True,
            ),
            scheduler=EulerDiscreteScheduler(**NOISE, prediction_type=prediction_type),
            add_watermarker=False,
        )
    pipeline.save_pretrained(folder)
    return folder


def fat_sd(folder: Path, width: int) -> Path:
    """A tiny Stable Diffusion but for its UNet, whose blocks are `width` and 2 x `width` wide; all in fp16.

    A width of 512 makes 190 million weights, 256 a quarter of that.
    """
    tiny_sd(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet: Any = _unet(block_out_channels=(width, 2 * width), cross_attention_dim=WIDTH, attention_head_dim=8)
    unet.half().save_pretrained(folder / "unet")
    for name, kind in (("vae", AutoencoderKL), ("text_encoder", CLIPTextModel)):
        kind.from_pretrained(folder / name).half().save_pretrained(folder / name)
    return folder


def _unet(**settings: object) -> UNet2DConditionModel:
    given: dict[str, object] = {
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "layers_per_block": 1,
        "block_out_channels": (8, 16),
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "attention_head_dim": 2,
        "norm_num_groups": 4,
    }
    return UNet2DConditionModel(**(given | settings))


def clip_config(tokenizer: CLIPTokenizer, width: int = WIDTH, hidden_act: str = "quick_gelu") -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        hidden_act=hidden_act,
        intermediate_size=2 * width,
        projection_dim=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=CLIP_WINDOW,
        # As in the text encoders' configs of SD 1.5, 2.1 and SDXL, where they are not the ids of the tokenizer.
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )


def clip_tokenizer(pad: str = "<|endoftext|>") -> CLIPTokenizer:
    """CLIP's byte-level tokenizer with merges for a few words only; every other word is spelled."""
    letters = [chr(code) for code in range(33, 127)]
    pieces = [*letters, *(letter + "</w>" for letter in letters)]
    merges: list[Any] = []
    for word in WORDS:
        symbols = [*word[:-1], word[-1] + "</w>"]
        while len(symbols) > 1:
            pair = (symbols[0], symbols[1])
            symbols[:2] = ["".join(pair)]
            if pair not in merges:
                merges.append(pair)
                pieces.append(symbols[0])
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, pad_token=pad, model_max_length=CLIP_WINDOW)
