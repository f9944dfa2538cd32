"""A LoRA for another model is refused with the family that it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from modules.checkpoint.formats.lora_origin import lora_family
from modules.checkpoint.formats.metadata import original_implementation
from modules.config import ConfigError, TrainConfig
from modules.diffusion.transformer_files.names import transformer_layout
from modules.facts import family_of_architecture
from modules.training.methods.lora import adapter_names
from modules.training.methods.lora_from import read_lora_from
from scripts import convert
from scripts.sample_lora import read_loras
from tests.families.flow_checks import load
from tests.families.tiny_flow_pipelines import TINY
from tests.families.tiny_pipelines import tiny_sd


def lora(file: Path, *layers: str, kohya: bool = False, metadata: dict[str, str] | None = None) -> Path:
    """A LoRA of rank 2 of layers of 4 x 4 numbers, in diffusers' or kohya's layout."""
    names = ("lora_down", "lora_up") if kohya else ("lora_A", "lora_B")
    tensors = {}
    for layer in layers:
        tensors[f"{layer}.{names[0]}.weight"] = torch.ones(2, 4)
        tensors[f"{layer}.{names[1]}.weight"] = torch.ones(4, 2)
    save_file(tensors, file, metadata)
    return file


@pytest.mark.parametrize(
    ("layers", "kohya", "family"),
    [
        (["transformer.layers.0.attention.to_q"], False, "z_image"),
        (["diffusion_model.noise_refiner.1.feed_forward.w1"], False, "z_image"),
        (["transformer.layers.0.attn.to_q"], False, "lumina2"),
        (["lora_unet_layers_0_adaLN_modulation_1", "lora_unet_layers_0_attention_qkv"], True, "lumina2"),
        (["transformer.single_transformer_blocks.0.norm.linear"], False, "flux"),
        (["lora_unet_double_blocks_0_img_mod_lin"], True, "flux"),
        (["transformer.single_transformer_blocks.0.attn.to_q"], False, "chroma or flux"),
        (["transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj"], False, "flux2"),
        (["transformer.transformer_blocks.0.img_mlp.net.2"], False, "qwen_image"),
        (["transformer.transformer_blocks.0.attn.to_gate"], False, "krea2"),
        (["transformer.blocks.0.attn1.to_q"], False, "wan"),
        (["diffusion_model.blocks.0.cross_attn.k"], False, "wan"),
        (["transformer.blocks.0.ffn.net.0.proj"], False, "wan"),
        (["lora_unet_blocks_0_self_attn_q"], False, "wan"),
        (["transformer.transformer_blocks.0.ff_context.net.2"], False, "stable_diffusion_3"),
        (["unet.down_blocks.1.attentions.0.transformer_blocks.1.attn1.to_q"], False, "stable_diffusion_xl"),
        (["lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q"], True, "stable_diffusion_xl"),
        (["transformer.transformer_blocks.0.attn.to_q"], False, ""),
        (["lora_unet_unheard_of"], True, ""),
    ],
)
def test_the_names_tell_the_family(layers: list[str], kohya: bool, family: str, tmp_path: Path) -> None:
    assert lora_family(lora(tmp_path / "a.safetensors", *layers, kohya=kohya)) == family


def test_modelspec_tells_the_family(tmp_path: Path) -> None:
    for declared, family in (
        ("flux-1-dev/lora", "flux"),
        ("Flux.2-klein-4b/lora", "flux2"),
        ("stable-diffusion-v3.5-large/lora", "stable_diffusion_3"),
        ("stable-diffusion-v1/lora", "stable_diffusion"),
        ("x", ""),
    ):
        metadata = {"modelspec.architecture": declared}
        file = lora(tmp_path / "a.safetensors", "transformer.transformer_blocks.0.attn.to_q", metadata=metadata)
        assert lora_family(file) == family


def test_lora_from_of_another_family(tmp_path: Path) -> None:
    file = lora(tmp_path / "flux.safetensors", "transformer.single_transformer_blocks.0.norm.linear")
    base = TINY["z_image"](tmp_path / "z")
    family = load("z_image", base)
    config = TrainConfig(family="z_image", base_model=str(base), method="lora", lora_from=str(file))
    with pytest.raises(ConfigError, match=r"(?s)flux\.safetensors.*belongs to the family flux\).*no such layer"):
        read_lora_from(family, config, adapter_names(family))


def test_generation_with_a_lora_of_another_family(tmp_path: Path) -> None:
    z_image = load("z_image", TINY["z_image"](tmp_path / "z"))
    flux = lora(tmp_path / "flux.safetensors", "transformer.single_transformer_blocks.0.norm.linear")
    (read,) = read_loras([str(flux)], [1.0], type(z_image))
    with pytest.raises(ConfigError, match=r"--lora .*belongs to the family flux\), but the base model has no such"):
        read.merge_into(z_image)
    sdxl = lora(tmp_path / "xl.safetensors", "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn1.to_q")
    with pytest.raises(ConfigError, match="LoRA of another model \\(it belongs to the family stable_diffusion_xl\\)"):
        read_loras([str(sdxl)], [1.0], type(z_image))


def test_merging_a_lora_of_another_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tiny_sd(tmp_path / "sd")
    for name, layer, family in (
        ("z", "transformer.layers.0.attention.to_q", "z_image"),
        ("xl", "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn1.to_q", "stable_diffusion_xl"),
    ):
        file = lora(tmp_path / f"{name}.safetensors", layer)
        assert convert.main([str(base), str(tmp_path / "out"), "--merge", str(file)]) == 2
        said = capsys.readouterr().err
        assert f"(it belongs to the family {family})" in said
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "config", "pipeline", "name"),
    [
        ("FluxTransformer2DModel", {"guidance_embeds": True}, "FluxPipeline", "flux-1-dev"),
        ("FluxTransformer2DModel", {"guidance_embeds": False}, "FluxPipeline", "flux-1-schnell"),
        ("Flux2Transformer2DModel", {}, "Flux2Pipeline", "Flux.2-dev"),
        *(
            ("Flux2Transformer2DModel", {"num_attention_heads": heads, "attention_head_dim": 128}, "Flux2Klein", name)
            for heads, name in ((24, "Flux.2-klein-4b"), (32, "Flux.2-klein-9b"), (1, "Flux.2-klein"))
        ),
        ("SD3Transformer2DModel", {"num_layers": 24, "dual_attention_layers": []}, "", "stable-diffusion-v3-medium"),
        ("SD3Transformer2DModel", {"num_layers": 24, "dual_attention_layers": [0]}, "", "stable-diffusion-v3.5-medium"),
        ("SD3Transformer2DModel", {"num_layers": 38}, "", "stable-diffusion-v3.5-large"),
        ("Lumina2Transformer2DModel", {}, "Lumina2Pipeline", "lumina-2"),
    ],
)
def test_the_variants_of_a_model_have_names_of_their_own(
    kind: str, config: dict[str, Any], pipeline: str, name: str
) -> None:
    layout = transformer_layout(kind, config, pipeline)
    assert layout is not None
    assert layout.architecture == name
    assert family_of_architecture(name)
    assert "CompVis" not in original_implementation(name)
