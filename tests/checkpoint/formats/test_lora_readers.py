"""LoRA files: diffusers and peft read both layouts, and draw the image of the model in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file

from modules.checkpoint.formats import read_lora, write_lora
from tests.checkpoint.formats.adapted import (
    ALL,
    ATTENTION,
    ATTENTION_MLP,
    LINEAR,
    SD,
    SDXL,
    adapted,
    layers_with_a_lora,
    weights_in,
)
from tests.checkpoint.formats.generating import generate, same

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
    "sdxl attention_mlp": ("sdxl", StableDiffusionXLPipeline, SDXL, ATTENTION_MLP, {}),
    "sdxl all_linear": ("sdxl", StableDiffusionXLPipeline, SDXL, LINEAR, {}),
    "sdxl all": ("sdxl", StableDiffusionXLPipeline, SDXL, ALL, {}),
    "small sdxl all": ("small_sdxl", StableDiffusionXLPipeline, SDXL, ALL, {}),
}


BOTH = ("sd attention", "sd all", "sd mixed ranks", "sdxl all")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layout"), [*((case, "kohya") for case in CASES), *((case, "diffusers") for case in BOTH)]
)
def test_diffusers_draws_the_picture_of_the_model_in_memory(
    case: str, layout: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name, kind, names, targets, more = CASES[case]
    folder: Path = request.getfixturevalue(name)
    pipeline = adapted(folder, kind, names, targets, **more)
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights_in(pipeline, names), layout, names, {"modelspec.title": "x"}, torch.float32)
    reader = kind.from_pretrained(folder)
    plain = generate(reader)
    reader.load_lora_weights(str(file))
    drawn = generate(reader)
    assert same(drawn, generate(pipeline))
    assert not same(drawn, plain)
    assert layers_with_a_lora(reader, names) == layers_with_a_lora(pipeline, names)


@pytest.fixture(scope="module")
def dora(sdxl: Path) -> Any:
    """A tiny SDXL with DoRA in every layer."""
    return adapted(sdxl, StableDiffusionXLPipeline, SDXL, ALL, dora=True)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["diffusers", "kohya"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_what_is_written_is_read_again(dora: Any, layout: Any, with_lengths: bool, tmp_path: Path) -> None:
    weights = [one if with_lengths else replace(one, magnitude=None) for one in weights_in(dora, SDXL)]
    written = {(one.submodule, one.module): one for one in weights}
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights, layout, SDXL, {}, torch.float32)
    read = read_lora(file, SDXL)
    assert len(read) == len(written)
    for one in read:
        other = written[one.submodule, one.module]
        assert torch.equal(one.down, other.down)
        assert torch.equal(one.up, other.up)
        assert one.alpha == other.alpha
        assert (one.magnitude is not None) is with_lengths
        if one.magnitude is not None and other.magnitude is not None:
            assert torch.equal(one.magnitude, other.magnitude)


@pytest.mark.slow
def test_dora_comes_whole_out_of_kohyas_layout(dora: Any, sdxl: Path, tmp_path: Path) -> None:
    """As diffusers itself leaves dora_scale out of kohya's layout, it is given the same file in its own."""
    kohya, own = tmp_path / "kohya.safetensors", tmp_path / "own.safetensors"
    write_lora(kohya, weights_in(dora, SDXL), "kohya", SDXL, {}, torch.float32)
    write_lora(own, read_lora(kohya, SDXL), "diffusers", SDXL, {}, torch.float32)
    reader = StableDiffusionXLPipeline.from_pretrained(sdxl)
    reader.load_lora_weights(str(own))
    assert same(generate(reader), generate(dora))


def as_peft_shapes_it(lengths: torch.Tensor) -> torch.Tensor:
    return lengths.flatten() if lengths.dim() == 2 else lengths.transpose(0, 1)


@pytest.mark.slow
def test_diffusers_own_names_for_dora_in_kohyas_layout_fit(dora: Any, sdxl: Path, tmp_path: Path) -> None:
    """Its table knows where dora_scale goes; its loader only ever hands it none, and its shapes are peft's."""
    from diffusers.loaders import lora_conversion_utils as table

    unet = {"unet": SDXL["unet"]}
    file = tmp_path / "kohya.safetensors"
    write_lora(file, weights_in(dora, unet), "kohya", SDXL, {}, torch.float32)
    reader = StableDiffusionXLPipeline.from_pretrained(sdxl)
    tensors = {
        name: as_peft_shapes_it(tensor) if name.endswith("dora_scale") else tensor
        for name, tensor in load_file(file).items()
    }
    mapped = table._maybe_map_sgm_blocks_to_diffusers(tensors, reader.unet.config)
    state, alphas = table._convert_non_diffusers_lora_to_diffusers(mapped)
    reader.load_lora_into_unet(state, network_alphas=alphas, unet=reader.unet)
    trained = {(one.submodule, one.module): one.magnitude for one in weights_in(dora, unet)}
    layers: dict[str, Any] = {n: layer for n, layer in reader.unet.named_modules() if isinstance(layer, LoraLayer)}
    loaded = {
        ("unet", name): layer.lora_magnitude_vector["default_0"].weight.flatten() for name, layer in layers.items()
    }
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[place], lengths) for place, lengths in trained.items() if lengths is not None)


@pytest.mark.slow
def test_peft_reads_the_unet_s_adapter(sd: Path, tmp_path: Path) -> None:
    from peft import set_peft_model_state_dict

    pipeline = adapted(sd, StableDiffusionPipeline, {"unet": SD["unet"]}, ALL)
    file = tmp_path / "lora.safetensors"
    write_lora(file, weights_in(pipeline, {"unet": SD["unet"]}), "diffusers", SD, {}, torch.float32)
    reader = StableDiffusionPipeline.from_pretrained(sd)
    inject_adapter_in_model(LoraConfig(r=3, lora_alpha=6, target_modules=ALL), reader.unet, "default")
    state = {name.removeprefix("unet."): tensor for name, tensor in load_file(file).items()}
    outcome: Any = set_peft_model_state_dict(reader.unet, state)
    assert outcome.unexpected_keys == []
    assert same(generate(reader), generate(pipeline))


@pytest.mark.slow
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
