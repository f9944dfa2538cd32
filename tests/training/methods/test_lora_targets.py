"""The layers that the presets of `lora_targets` choose, on models with the real topology of Stable Diffusion."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.config import TrainConfig
from modules.families._latent_diffusion import LatentDiffusion
from modules.families.stable_diffusion import StableDiffusion
from modules.families.stable_diffusion_xl import StableDiffusionXL
from modules.importers.ai_toolkit.tables import ENCODER_TARGETS, UNET_TARGETS
from modules.importers.diffusion_pipe.model import TARGETS as DIFFUSION_PIPE
from modules.importers.onetrainer.model import TARGETS as ONETRAINER
from modules.training.memory.model_setup import load_family
from modules.training.methods.lora import lora_targets
from modules.training.methods.lora_files import LORA_FILES
from modules.training.methods.method import apply_adapter, export_of
from tests.adapted_models import BOTH, LORA, assert_close, batch_of, ready, train_a_little

# unet/config.json of stable-diffusion-v1-5/stable-diffusion-v1-5 and stabilityai/stable-diffusion-xl-base-1.0, without
# what does not change the layers.
SD15_UNET = {
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    "block_out_channels": [320, 640, 1280, 1280],
    "layers_per_block": 2,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
SDXL_UNET = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [320, 640, 1280],
    "layers_per_block": 2,
    "cross_attention_dim": 2048,
    "attention_head_dim": [5, 10, 20],
    "transformer_layers_per_block": [1, 2, 10],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
CLIP_L: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
CLIP_G: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
}

# kohya-ss/sd-scripts networks/lora.py: UNET_TARGET_REPLACE_MODULE, UNET_TARGET_REPLACE_MODULE_CONV2D_3X3 and
# TEXT_ENCODER_TARGET_REPLACE_MODULE.
KOHYA = {"Transformer2DModel", "CLIPAttention", "CLIPMLP"}
KOHYA_CONV = KOHYA | {"ResnetBlock2D", "Downsample2D", "Upsample2D"}


@cache
def model_of(family: type[LatentDiffusion]) -> LatentDiffusion:
    """The family with a model of the real size, without memory for its weights."""
    found = family.__new__(family)
    found.model = nn.Module()  # type: ignore[assignment]
    with torch.device("meta"):
        is_xl = family is StableDiffusionXL
        found.model.unet = UNet2DConditionModel.from_config(SDXL_UNET if is_xl else SD15_UNET)
        found.model.text_encoder = CLIPTextModel(CLIPTextConfig(**CLIP_L))
        if is_xl:
            found.model.text_encoder_2 = CLIPTextModelWithProjection(CLIPTextConfig(**CLIP_G, projection_dim=1280))
    return found


def chosen(family: type[LatentDiffusion], targets: str) -> list[str]:
    parts = [{"part": part} for part in family.submodules]
    settings = {"family": "stable_diffusion", "method": "lora", "lora_targets": targets, "parts": parts}
    return lora_targets(model_of(family).model, family, TrainConfig.model_validate(settings))


def count(names: list[str]) -> list[int]:
    """How many layers each submodule has."""
    found = Counter(name.partition(".")[0] for name in names)
    return [found[part] for part in ("unet", "text_encoder", "text_encoder_2") if found[part]]


def inside(family: type[LatentDiffusion], classes: set[str]) -> set[str]:
    """Every linear layer and convolution inside modules of these classes, as kohya's create_modules finds them."""
    return {
        f"{name}.{inner}"
        for name, module in model_of(family).model.named_modules()
        if type(module).__name__ in classes
        for inner, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    }


@pytest.mark.parametrize(
    ("family", "targets", "expected"),
    [
        # "create LoRA for Text Encoder: 72 modules", "create LoRA for U-Net: 192 modules" in logs of sd-scripts
        (StableDiffusion, "kohya", [192, 72]),
        (StableDiffusionXL, "kohya", [722, 72, 192]),  # 722 and 264 modules
        # 22 residual blocks of three layers, 14 of them with a shortcut, and 6 changes of size; SDXL 17, 11 and 4
        (StableDiffusion, "kohya_conv", [192 + 3 * 22 + 14 + 6, 72]),
        (StableDiffusionXL, "kohya_conv", [722 + 3 * 17 + 11 + 4, 72, 192]),
        # Nerogar/OneTrainer: layer_filter is for the UNet; of text encoders also the projection
        (StableDiffusion, "onetrainer", [192, 72]),
        (StableDiffusionXL, "onetrainer", [722, 72, 193]),
        # tdrussell/diffusion-pipe models/sdxl.py: all linear layers in blocks, so also the 17 time_emb_proj
        (StableDiffusionXL, DIFFUSION_PIPE, [722 + 17, 72, 193]),
        (StableDiffusionXL, ONETRAINER["attn-only"], [70 * 8, 72, 193]),
        # ostris/ai-toolkit toolkit/lora_special.py: all linear layers and 1x1 convolutions of the UNet, so also
        # time_emb_proj, shortcuts, and the two layers of each embedding of time and (SDXL) sizes
        (StableDiffusion, f"{UNET_TARGETS},{ENCODER_TARGETS}", [192 + 22 + 14 + 2, 72]),
        (StableDiffusionXL, f"{UNET_TARGETS},{ENCODER_TARGETS}", [722 + 17 + 11 + 4, 72, 192]),
    ],
)
def test_presets_of_other_trainers(family: type[LatentDiffusion], targets: str, expected: list[int]) -> None:
    assert count(chosen(family, targets)) == expected


@pytest.mark.parametrize("family", [StableDiffusion, StableDiffusionXL])
def test_kohyas_presets_are_what_its_rule_finds(family: type[LatentDiffusion]) -> None:
    assert set(chosen(family, "kohya")) == inside(family, KOHYA)
    assert set(chosen(family, "kohya_conv")) == inside(family, KOHYA_CONV)


@pytest.mark.slow
def test_attention_mlp_leaves_out_what_is_around_the_blocks() -> None:
    more = set(chosen(StableDiffusionXL, "kohya")) - set(chosen(StableDiffusionXL, "attention_mlp"))
    assert {name.rpartition(".")[2] for name in more} == {"proj_in", "proj_out"}
    assert len(more) == 2 * 11


def test_convolutions_have_a_rank_and_an_alpha_of_their_own() -> None:
    family, _ = ready(**{**LORA, "parts": BOTH, "lora_conv_rank": 2, "lora_conv_alpha": 0.5})
    scale = {}
    for name, layer in family.model.named_modules():
        if hasattr(layer, "lora_A"):
            base = layer.get_base_layer()
            wide = isinstance(base, nn.Conv2d) and base.kernel_size != (1, 1)
            scale[name] = (wide, layer.r["default"], layer.scaling["default"])
    assert set(scale.values()) == {(True, 2, 0.5 / 2), (False, 3, 2.0 / 3)}
    plain, _ = ready(**{**LORA, "parts": BOTH})
    layers: list[Any] = [layer for layer in plain.model.modules() if hasattr(layer, "lora_A")]
    assert {layer.r["default"] for layer in layers} == {3}


@pytest.mark.parametrize("layout", ["diffusers", "kohya"])
def test_files_of_two_ranks_equal_the_model_in_memory(tmp_path: Path, layout: Literal["diffusers", "kohya"]) -> None:
    settings = {**LORA, "parts": BOTH, "lora_conv_rank": 2, "lora_conv_alpha": 0.5, "lora_layouts": layout, "seed": 9}
    family, config = ready(**settings, learning_rate=0.05)
    export_of(family, train_a_little(family, config), config, {})(tmp_path)
    merged = load_family(config)
    apply_adapter(merged, config, tmp_path)
    assert_close(batch_of(3, merged), batch_of(3, family))
    tensors = load_file(tmp_path / LORA_FILES[layout])
    down = {tensor.shape[0] for name, tensor in tensors.items() if "lora_A" in name or "lora_down" in name}
    assert down == {2, 3}
