"""Base models of real widths with random weights for benchmarks/gpu.py, on disk in the form in which real ones are.

UNets, transformers and autoencoders are those of the real models, FLUX.1 and Z-Image with fewer blocks. Text encoders
give states of the real widths but are small: captions are encoded once, before training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel, ZImageTransformer2DModel
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, Qwen3Model, T5EncoderModel

from benchmarks.bare_loops import BareLoop, EpsilonLoop, FluxLoop, ZImageLoop
from tests.families.tiny_flow_parts import qwen_config, qwen_tokenizer, t5_config, t5_tokenizer
from tests.families.tiny_flow_pipelines import tiny_flux, tiny_z_image
from tests.families.tiny_pipelines import clip_config, clip_tokenizer, tiny_sd, tiny_sdxl

IMAGES = 16
TINY_SIDE = 64  # of the images of a rehearsal
_CLIP_L, _CLIP_G, _T5, _QWEN = 768, 1280, 4096, 2560  # widths of text encoders
_TEXT = "a photo of a red disc on a table, " * 8  # about as many tokens as a long caption has


@dataclass(frozen=True)
class RealSize:
    """A base model; `tiny` replaces what a rehearsal on a CPU has smaller."""

    family: str
    side: int  # of its images
    pipeline: Callable[[Path], Path]  # writes tokenizers, scheduler and index, and tiny networks that are replaced
    network: tuple[str, type[Any], Mapping[str, object], Mapping[str, object]]  # folder, class, config, tiny
    encoders: Callable[[], Mapping[str, nn.Module]]
    bare: type[BareLoop]
    vae: Mapping[str, object]


def _clip(width: int, kind: type[Any] = CLIPTextModel, **settings: Any) -> nn.Module:
    config = clip_config(clip_tokenizer(**settings), width, "quick_gelu" if width == _CLIP_L else "gelu")
    config.projection_dim = width
    return kind(config)  # type: ignore[no-any-return]


MODELS: Mapping[str, RealSize] = {
    "sd15": RealSize(
        "stable_diffusion",
        512,
        tiny_sd,
        (
            "unet",
            UNet2DConditionModel,
            {"cross_attention_dim": _CLIP_L},  # all else is the class's default
            {"block_out_channels": (32, 64, 64, 64)},
        ),
        lambda: {"text_encoder": _clip(_CLIP_L)},
        EpsilonLoop,
        {"latent_channels": 4, "scaling_factor": 0.18215},
    ),
    "sdxl": RealSize(
        "stable_diffusion_xl",
        1024,
        tiny_sdxl,
        (
            "unet",
            UNet2DConditionModel,
            {
                "sample_size": 128,
                "block_out_channels": (320, 640, 1280),
                "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                "transformer_layers_per_block": (1, 2, 10),
                "attention_head_dim": (5, 10, 20),
                "cross_attention_dim": _CLIP_L + _CLIP_G,
                "use_linear_projection": True,
                "addition_embed_type": "text_time",
                "addition_time_embed_dim": 256,
                "projection_class_embeddings_input_dim": 6 * 256 + _CLIP_G,
            },
            {
                "block_out_channels": (32, 64, 64),
                "transformer_layers_per_block": (1, 1, 2),
                "attention_head_dim": (2, 4, 4),
            },
        ),
        lambda: {
            "text_encoder": _clip(_CLIP_L),
            "text_encoder_2": _clip(_CLIP_G, CLIPTextModelWithProjection, pad="!"),
        },
        EpsilonLoop,
        {"latent_channels": 4, "scaling_factor": 0.13025},
    ),
    "flux": RealSize(
        "flux",
        1024,
        tiny_flux,
        (
            "transformer",
            FluxTransformer2DModel,
            {"num_layers": 4, "num_single_layers": 8, "guidance_embeds": True, "pooled_projection_dim": _CLIP_L},
            {"num_layers": 2, "num_single_layers": 2, "num_attention_heads": 1},
        ),
        lambda: {"text_encoder": _clip(_CLIP_L), "text_encoder_2": T5EncoderModel(t5_config(t5_tokenizer(), _T5))},
        FluxLoop,
        {"latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159},
    ),
    "z_image": RealSize(
        "z_image",
        1024,
        tiny_z_image,
        (
            "transformer",
            ZImageTransformer2DModel,
            {"dim": 3840, "n_layers": 6, "n_refiner_layers": 1, "n_heads": 30, "n_kv_heads": 30, "cap_feat_dim": _QWEN},
            {"dim": 128, "n_layers": 2, "n_heads": 1, "n_kv_heads": 1},
        ),
        lambda: {"text_encoder": Qwen3Model(qwen_config(qwen_tokenizer(), hidden_size=_QWEN))},
        ZImageLoop,
        {"latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159},
    ),
}


def write_model(name: str, folder: Path, device: torch.device, *, tiny: bool) -> None:
    """The base model `name` in `folder`/base, and its images in `folder`/images."""
    size = MODELS[name]
    base = size.pipeline(folder / "base")
    part, kind, config, smaller = size.network
    write_network(kind, {**config, **(smaller if tiny else {})}, base / part, device)
    vae = {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (32,) * 4 if tiny else (128, 256, 512, 512),
        "layers_per_block": 1 if tiny else 2,
    }
    write_network(AutoencoderKL, {**vae, **size.vae}, base / "vae", device)
    for encoder, module in size.encoders().items():
        module.save_pretrained(base / encoder)  # type: ignore[operator]
    write_images(folder / "images", TINY_SIDE if tiny else size.side)


def write_network(kind: type[Any], config: Mapping[str, object], folder: Path, device: torch.device) -> None:
    """A network of diffusers in bf16, made on `device`: layers keep the size of what passes through them."""
    with torch.device("meta"):
        network = kind(**config)
    network.save_config(folder)
    tensors = {name: _random(name, each.shape, device).cpu() for name, each in network.state_dict().items()}
    for old in folder.glob("*.safetensors"):
        old.unlink()
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


def _random(name: str, shape: torch.Size, device: torch.device) -> Tensor:
    tensor = torch.empty(shape, dtype=torch.bfloat16, device=device)
    if len(shape) > 1:
        return tensor.normal_(std=1 / math.sqrt(math.prod(shape[1:])))
    return tensor.fill_(1 if name.endswith("weight") else 0)  # of norms, and biases


def write_images(folder: Path, side: int, count: int = IMAGES) -> None:
    """`count` images of `side` x `side`, smooth like photographs, with a caption each."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        file = folder / f"{number:03d}.jpg"
        small.resize((side, side), Image.Resampling.BICUBIC).save(file, quality=90)
        file.with_suffix(".txt").write_text(f"{number}: {_TEXT}")
