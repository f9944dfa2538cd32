"""LoRA files: diffusers and peft read both layouts, and draw the picture of the model in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import LoraWeights, read_lora, write_lora
from modules.checkpoint.formats.kohya_names import dotted, flat
from modules.config import ConfigError
from tests.checkpoint.formats.drawing import picture, same

SD = {"unet": ("unet", "lora_unet"), "text_encoder": ("text_encoder", "lora_te")}
SDXL = {
    "unet": ("unet", "lora_unet"),
    "text_encoder": ("text_encoder", "lora_te1"),
    "text_encoder_2": ("text_encoder_2", "lora_te2"),
}
ATTENTION = r".*(to_q|to_k|to_v|to_out\.0|q_proj|k_proj|v_proj|out_proj)"
ALL = r".*(to_q|to_out\.0|ff\.net\.0\.proj|ff\.net\.2|proj_in|proj_out|conv1|conv2|conv_shortcut|conv|conv_in|conv_out|time_emb_proj|linear_1|linear_2|q_proj|out_proj|fc1|fc2)"  # noqa: E501


def adapted(
    folder: Path, kind: Any, names: dict[str, tuple[str, str]], targets: str, dora: bool = False, **more: Any
) -> Any:
    """A pipeline with random adapters in all its parts."""
    pipeline = kind.from_pretrained(folder)
    torch.manual_seed(3)
    for part in names:
        patterns = more if part == "unet" else {}
        settings = LoraConfig(**({"r": 3, "lora_alpha": 6, "target_modules": targets, "use_dora": dora} | patterns))
        inject_adapter_in_model(settings, getattr(pipeline, part), "default")
        for name, weight in getattr(pipeline, part).named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
            if "magnitude" in name:
                weight.data *= 1 + 0.2 * torch.rand_like(weight)
    return pipeline


def weights_in(pipeline: Any, names: dict[str, tuple[str, str]]) -> list[LoraWeights]:
    """What was injected, as the trainer hands it over."""
    found = []
    for part in names:
        for name, layer in getattr(pipeline, part).named_modules():
            if isinstance(layer, LoraLayer):
                dora = "default" in layer.lora_magnitude_vector
                found.append(
                    LoraWeights(
                        part,
                        name,
                        layer.lora_A["default"].weight,
                        layer.lora_B["default"].weight,
                        float(layer.lora_alpha["default"]),
                        layer.lora_magnitude_vector["default"].weight.flatten() if dora else None,
                    )
                )
    assert found
    return found


CASES: dict[str, tuple[str, Any, dict[str, tuple[str, str]], str, dict[str, Any]]] = {
    "sd attention": ("sd", StableDiffusionPipeline, SD, ATTENTION, {}),
    "sd all": ("sd", StableDiffusionPipeline, SD, ALL, {}),
    "sd mixed ranks": (
        "sd",
        StableDiffusionPipeline,
        SD,
        ATTENTION,
        {"rank_pattern": {"attn1.to_q": 2}, "alpha_pattern": {"attn1.to_q": 5, "attn2.to_k": 1}},
    ),
    "sdxl attention": ("sdxl", StableDiffusionXLPipeline, SDXL, ATTENTION, {}),
    "sdxl all": ("sdxl", StableDiffusionXLPipeline, SDXL, ALL, {}),
}


@pytest.mark.parametrize("layout", ["diffusers", "kohya"])
@pytest.mark.parametrize("case", CASES)
def test_diffusers_draws_the_picture_of_the_model_in_memory(
    case: str, layout: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name, kind, names, targets, more = CASES[case]
    folder: Path = request.getfixturevalue(name)
    pipeline = adapted(folder, kind, names, targets, **more)
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights_in(pipeline, names), layout, names, {"modelspec.title": "x"}, torch.float32)
    reader = kind.from_pretrained(folder)
    plain = picture(reader)
    reader.load_lora_weights(str(file))
    drawn = picture(reader)
    assert same(drawn, picture(pipeline))
    assert not same(drawn, plain)


@pytest.mark.parametrize("layout", ["diffusers", "kohya"])
@pytest.mark.parametrize("dora", [False, True])
def test_what_is_written_is_read_again(sdxl: Path, layout: Any, dora: bool, tmp_path: Path) -> None:
    pipeline = adapted(sdxl, StableDiffusionXLPipeline, SDXL, ALL, dora=dora)
    written = {(one.part, one.module): one for one in weights_in(pipeline, SDXL)}
    file = tmp_path / "lora.safetensors"
    write_lora(file, written.values(), layout, SDXL, {}, torch.float32)
    read = read_lora(file, SDXL)
    assert len(read) == len(written)
    for one in read:
        other = written[one.part, one.module]
        assert torch.equal(one.down, other.down)
        assert torch.equal(one.up, other.up)
        assert one.alpha == other.alpha
        assert (one.magnitude is None) is not dora
        if one.magnitude is not None and other.magnitude is not None:
            assert torch.equal(one.magnitude, other.magnitude)


def test_diffusers_reads_dora_in_its_own_layout(sd: Path, tmp_path: Path) -> None:
    pipeline = adapted(sd, StableDiffusionPipeline, SD, ATTENTION, dora=True)
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights_in(pipeline, SD), "diffusers", SD, {}, torch.float32)
    reader = StableDiffusionPipeline.from_pretrained(sd)
    reader.load_lora_weights(str(file))
    assert same(picture(reader), picture(pipeline))


def test_peft_reads_the_unet_s_adapter(sd: Path, tmp_path: Path) -> None:
    from peft import set_peft_model_state_dict

    pipeline = adapted(sd, StableDiffusionPipeline, {"unet": SD["unet"]}, ALL)
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights_in(pipeline, {"unet": SD["unet"]}), "diffusers", SD, {}, torch.float32)
    reader = StableDiffusionPipeline.from_pretrained(sd)
    inject_adapter_in_model(LoraConfig(r=3, lora_alpha=6, target_modules=ALL), reader.unet, "default")
    state = {name.removeprefix("unet."): tensor for name, tensor in load_file(file).items()}
    outcome = set_peft_model_state_dict(reader.unet, state)
    assert outcome.unexpected_keys == []
    assert same(picture(reader), picture(pipeline))


def test_dora_in_kohyas_layout_has_a_column_of_lengths(sd: Path, tmp_path: Path) -> None:
    """ComfyUI takes lengths along the first axis, [out, 1], for those of rows."""
    pipeline = adapted(sd, StableDiffusionPipeline, SD, ALL, dora=True)
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights_in(pipeline, SD), "kohya", SD, {}, torch.float16)
    tensors = load_file(file)
    scale = tensors["lora_unet_conv_in.dora_scale"]
    assert scale.shape == (8, 1, 1, 1)
    assert scale.dtype == torch.float16
    assert tensors["lora_te_text_model_encoder_layers_0_mlp_fc1.dora_scale"].shape == (32, 1)


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
    tensors = {}
    for name in names:
        stem = f"lora_unet_{name}"
        tensors |= {f"{stem}.lora_down.weight": torch.ones(2, 4), f"{stem}.lora_up.weight": torch.ones(4, 2)}
    save_file(tensors, file)
    assert {one.module for one in read_lora(file, SDXL)} == set(names.values())
    assert {one.alpha for one in read_lora(file, SDXL)} == {2.0}


def test_a_lora_of_another_architecture_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(
        {
            "transformer.single_blocks.0.lora_A.weight": torch.ones(2, 4),
            "transformer.single_blocks.0.lora_B.weight": torch.ones(4, 2),
        },
        file,
    )
    with pytest.raises(ConfigError, match=r"LoRA of another model.*begins with none of unet, text_encoder"):
        read_lora(file, SD)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a.lora_down.weight": torch.ones(2, 4)}, "another model"),
        ({"lora_unet_conv_in.lora_down.weight": torch.ones(2, 4)}, "incomplete.*lora_up"),
        ({"x.weight": torch.ones(2)}, "holds no LoRA"),
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


def test_every_layer_of_the_real_models_has_a_name_in_kohyas_layout() -> None:
    from diffusers import UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    with torch.device("meta"):
        xl = {"addition_embed_type": "text_time", "projection_class_embeddings_input_dim": 8, "layers_per_block": 2}
        unet = UNet2DConditionModel(**xl, addition_time_embed_dim=2, cross_attention_dim=8)
        text = CLIPTextModelWithProjection(CLIPTextConfig(num_hidden_layers=12))
    for model in (unet, text):
        layers = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)]
        joined = [flat(name) for name in layers]
        assert None not in joined, [name for name in layers if flat(name) is None]
        assert [dotted(str(name)) for name in joined] == layers
