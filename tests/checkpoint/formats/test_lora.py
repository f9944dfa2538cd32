"""LoRA files: the names of their tensors, what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from modules.checkpoint.formats import LoraWeights, kohya_key_prefixes, read_lora, write_lora
from modules.checkpoint.formats.kohya_names import from_kohya, to_kohya
from modules.checkpoint.formats.original_names import unet_name
from modules.config import ConfigError
from tests.checkpoint.formats.adapted import (
    SD,
    SDXL,
)
from tests.checkpoint.formats.real_blocks import SDXL_BLOCKS


def test_dora_with_lengths_of_columns_is_refused(tmp_path: Path) -> None:
    """As LyCORIS writes it with wd_on_output off; a square layer would take them for those of rows."""
    file, stem = tmp_path / "lora.safetensors", "lora_unet_down_blocks_0_attentions_0_proj_in"
    tensors = {f"{stem}.lora_down.weight": torch.ones(2, 8), f"{stem}.lora_up.weight": torch.ones(8, 2)}
    save_file(tensors | {f"{stem}.dora_scale": torch.ones(1, 8)}, file)
    with pytest.raises(ConfigError, match=r"dora_scale has the shape \[1, 8\].*LyCORIS"):
        read_lora(file, SD)


def test_sdxl_names_of_kohyas_own_scripts_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    block = "transformer_blocks"
    names = {
        f"input_blocks_4_1_{block}_0_attn1_to_q": f"down_blocks.1.attentions.0.{block}.0.attn1.to_q",
        "input_blocks_3_0_op": "down_blocks.0.downsamplers.0.conv",
        "input_blocks_8_0_emb_layers_1": "down_blocks.2.resnets.1.time_emb_proj",
        "middle_block_1_proj_in": "mid_block.attentions.0.proj_in",
        "middle_block_2_in_layers_2": "mid_block.resnets.1.conv1",
        "output_blocks_2_2_conv": "up_blocks.0.upsamplers.0.conv",
        f"output_blocks_5_1_{block}_1_ff_net_0_proj": f"up_blocks.1.attentions.2.{block}.1.ff.net.0.proj",
        "output_blocks_8_0_skip_connection": "up_blocks.2.resnets.2.conv_shortcut",
        "time_embed_0": "time_embedding.linear_1",
        "label_emb_0_2": "add_embedding.linear_2",
        "out_2": "conv_out",
        "input_blocks_0_0": "conv_in",
    }
    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        stem = f"lora_unet_{name}"
        tensors |= {f"{stem}.lora_down.weight": torch.ones(2, 4), f"{stem}.lora_up.weight": torch.ones(4, 2)}
    save_file(tensors | {"lora_unet_out_2.alpha": torch.tensor(0.0)}, file)
    assert {one.module for one in read_lora(file, SDXL)} == set(names.values())
    assert {one.alpha for one in read_lora(file, SDXL)} == {2.0}, "the rank, where there is none or zero"


def layers_of(model: torch.nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)]


def adapter_of(part: str, module: str) -> LoraWeights:
    return LoraWeights(part, module, torch.ones(2, 4), torch.ones(4, 2), 2.0, None)


@pytest.fixture(scope="module")
def real_unet() -> UNet2DConditionModel:
    """SDXL's own, without its numbers."""
    with torch.device("meta"):
        return UNet2DConditionModel(
            **SDXL_BLOCKS | {"transformer_layers_per_block": (1, 2, 10)},
            block_out_channels=(320, 640, 1280),
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
            cross_attention_dim=2048,
        )


def test_sdxl_lora_in_kohya_layout_has_original_names(real_unet: Any) -> None:
    """Of every layer of the real UNet; sd-scripts, ComfyUI and others make their names from those of these tensors."""
    from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint

    layers = layers_of(real_unet)
    stems = kohya_key_prefixes([adapter_of("unet", name) for name in layers], SDXL)
    assert "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q" in stems
    places = [unet_name(name, dict(real_unet.config)) for name in real_unet.state_dict()]
    keys = {place.name: place.name for place in places if place is not None}
    # diffusers' own way back, which reads files of the original layout
    by_layer = convert_ldm_unet_checkpoint(keys, dict(real_unet.config))
    for name, stem in zip(layers, stems, strict=True):
        key = by_layer[f"{name}.weight"].removeprefix("model.diffusion_model.").removesuffix(".weight")
        assert stem == f"lora_unet_{key.replace('.', '_')}"
        assert from_kohya(stem.removeprefix("lora_unet_")) == name


@pytest.mark.parametrize(
    ("names", "modules", "first"),
    [
        (SD, ["down_blocks.1.attentions.0.proj_in"], "lora_unet_down_blocks_1_attentions_0_proj_in"),
        (SDXL, ["down_blocks.1.attentions.0.proj_in"], "lora_unet_input_blocks_4_1_proj_in"),
        # a UNet with fewer blocks: readers take a file for one kind of names or the other
        (
            SDXL,
            ["down_blocks.1.attentions.0.proj_in", "down_blocks.0.attentions.0.proj_in"],
            "lora_unet_down_blocks_1_attentions_0_proj_in",
        ),
    ],
)
def test_which_names_the_unet_gets(names: dict[str, tuple[str, str]], modules: list[str], first: str) -> None:
    assert kohya_key_prefixes([adapter_of("unet", module) for module in modules], names)[0] == first


def test_sdxl_files_with_diffusers_names_are_read_too(sdxl: Path, tmp_path: Path) -> None:
    """As Tandem once wrote them, and OneTrainer does."""
    file, again = tmp_path / "diffusers_names.safetensors", tmp_path / "again.safetensors"
    module = "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"
    stem = f"lora_unet_{to_kohya(module)}"
    save_file({f"{stem}.lora_down.weight": torch.ones(2, 16), f"{stem}.lora_up.weight": torch.ones(16, 2)}, file)
    (read,) = read_lora(file, SDXL)
    assert (read.submodule, read.module, read.alpha) == ("unet", module, 2.0)
    write_lora(again, [read], "kohya", SDXL, {}, torch.float32)
    assert "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.alpha" in load_file(again)


def test_lora_of_another_architecture_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(
        {
            "transformer.single_blocks.0.lora_A.weight": torch.ones(2, 4),
            "transformer.single_blocks.0.lora_B.weight": torch.ones(4, 2),
        },
        file,
    )
    with pytest.raises(ConfigError, match=r"LoRA of another model.*starts with none of unet, text_encoder"):
        read_lora(file, SD)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a.lora_down.weight": torch.ones(2, 4)}, "another model"),
        ({"lora_unet_conv_in.lora_down.weight": torch.ones(2, 4)}, "incomplete.*lora_up"),
        ({"x.weight": torch.ones(2)}, "is not a LoRA"),
        (
            {"lora_unet_conv_in.lora_down.weight": torch.ones(2)},
            r"is damaged: '.*lora_down.weight' has the shape \[2\]",
        ),
        (
            {
                "lora_unet_conv_in.lora_down.weight": torch.ones(2, 4),
                "lora_unet_conv_in.lora_up.weight": torch.ones(4, 2),
                "lora_unet_conv_in.alpha": torch.ones(3),
            },
            r"alpha has the shape \[3\], not one number",
        ),
    ],
)
def test_what_is_no_whole_lora_is_refused(content: dict[str, torch.Tensor], words: str, tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(content, file)
    with pytest.raises(ConfigError, match=words):
        read_lora(file, SD)


def test_a_module_that_kohya_cannot_name_is_refused(tmp_path: Path) -> None:
    one = LoraWeights("unet", "my_own.layer", torch.ones(2, 4), torch.ones(4, 2), 2.0, None)
    with pytest.raises(ConfigError, match=r"'my_own\.layer' cannot be named in the kohya layout"):
        write_lora(tmp_path / "x.safetensors", [one], "kohya", SD, {}, torch.float32)


def test_the_header_says_alpha_as_diffusers_does(tmp_path: Path) -> None:
    one = LoraWeights("unet", "conv_in", torch.ones(2, 4, 3, 3), torch.ones(4, 2, 1, 1), 5.0, None)
    file = tmp_path / "x.safetensors"
    write_lora(file, [one], "diffusers", SD, {"modelspec.title": "mine"}, torch.bfloat16)
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    settings = json.loads(header["__metadata__"]["lora_adapter_metadata"])
    assert (settings["unet.r"], settings["unet.lora_alpha"]) == (2, 5.0)
    assert header["__metadata__"]["modelspec.title"] == "mine"


def test_every_layer_of_real_models_has_a_kohya_name(real_unet: Any) -> None:
    with torch.device("meta"):
        text = CLIPTextModelWithProjection(CLIPTextConfig(num_hidden_layers=12))
    for model in (real_unet, text):
        layers = layers_of(model)
        joined = [to_kohya(name) for name in layers]
        assert None not in joined, [name for name in layers if to_kohya(name) is None]
        assert [from_kohya(str(name)) for name in joined] == layers
