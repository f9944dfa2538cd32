"""One file in the original layout: diffusers' own reader draws the same image from it, and it can be undone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import write_diffusers_folder, write_single_file
from modules.checkpoint.formats.diffusers_folder import ComponentWeights, read_diffusers_folder
from modules.checkpoint.formats.original_names import open_clip_name, unet_name, vae_name
from modules.checkpoint.formats.single_file import architecture_of
from modules.config import ConfigError
from tests.checkpoint.formats.generating import generate, same
from tests.families.tiny_pipelines import tiny_sd

KINDS: dict[str, Any] = {
    "sd": StableDiffusionPipeline,
    "sd2": StableDiffusionPipeline,
    "sdxl": StableDiffusionXLPipeline,
}


@pytest.mark.parametrize("name", KINDS)
def test_diffusers_draws_the_same_picture_from_the_single_file(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(name)
    file = tmp_path / "model.safetensors"
    write_single_file(folder, file, torch.float32, {"modelspec.title": "x"})
    original = KINDS[name].from_pretrained(folder)
    read = KINDS[name].from_single_file(str(file), config=str(folder), local_files_only=True)
    assert same(generate(original), generate(read))
    for part in ("unet", "vae", "text_encoder"):
        theirs = getattr(read, part).state_dict()
        for key, weight in getattr(original, part).state_dict().items():
            assert torch.equal(weight, theirs[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_single_file_becomes_the_same_folder_again(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(name)
    file, again = tmp_path / "model.safetensors", tmp_path / "again"
    write_single_file(folder, file, torch.float32, {})
    write_diffusers_folder(file, folder, again, torch.float32)
    assert same(generate(KINDS[name].from_pretrained(folder)), generate(KINDS[name].from_pretrained(again)))


@pytest.mark.slow
def test_an_inpainting_model_keeps_its_nine_channels(tmp_path: Path) -> None:
    folder = tiny_sd(tmp_path / "inpaint", channels=9)
    file = tmp_path / "model.safetensors"
    write_single_file(folder, file, torch.float32, {})
    read = StableDiffusionInpaintPipeline.from_single_file(str(file), config=str(folder), local_files_only=True)
    assert read.unet.config["in_channels"] == 9
    assert torch.equal(
        read.unet.state_dict()["conv_in.weight"],
        load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")["conv_in.weight"],
    )


def test_real_sizes_have_the_names_that_everybody_knows() -> None:
    """The names of Stable Diffusion 1, whose UNet has four blocks with two layers each."""
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel(cross_attention_dim=768)
    names = {place.name for name in unet.state_dict() if (place := unet_name(name, dict(unet.config)))}
    assert len(names) == len(unet.state_dict()) == 686
    for known in (
        "input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight",
        "input_blocks.3.0.op.weight",
        "input_blocks.11.0.out_layers.3.weight",
        "middle_block.1.proj_in.weight",
        "output_blocks.2.1.conv.weight",
        "output_blocks.5.2.conv.weight",
        "output_blocks.11.0.skip_connection.weight",
        "time_embed.2.bias",
        "out.2.weight",
    ):
        assert f"model.diffusion_model.{known}" in names


def test_layer_omitted_by_diffusers_is_written_for_other_tools(sd2: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd2, tmp_path / "sd2")
    weights = folder / "text_encoder" / "model.safetensors"
    config_file = folder / "text_encoder" / "config.json"
    tensors = load_file(weights)
    prefix = "text_model." if any(name.startswith("text_model.") for name in tensors) else ""
    pattern = f"{prefix}encoder.layers.2."
    last = {name: tensor for name, tensor in tensors.items() if name.startswith(pattern)}
    for number in range(3, 23):
        tensors |= {name.replace(".2.", f".{number}.", 1): tensor.clone() for name, tensor in last.items()}
    save_file(tensors, weights)
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"num_hidden_layers": 23}))
    file = tmp_path / "model.safetensors"
    write_single_file(folder, file, torch.float32, {})
    with safe_open(file, "pt") as written:
        names = list(written.keys())
    assert "cond_stage_model.model.transformer.resblocks.23.attn.in_proj_weight" in names
    assert len([name for name in names if ".resblocks.23." in name]) == 12


def test_dtype_and_hash_of_a_written_file(sd: Path, tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "model.safetensors"
    write_single_file(sd, file, torch.float16, {"modelspec.hash_sha256": "", "modelspec.title": "Ü"})
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    with safe_open(file, "pt") as written:
        assert {written.get_tensor(name).dtype for name in written.keys()} == {torch.float16}  # noqa: SIM118
        metadata = written.metadata()
    assert metadata["modelspec.hash_sha256"] == "0x" + hashlib.sha256(content[8 + length :]).hexdigest()
    assert metadata["modelspec.title"] == "Ü"
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_velocity_model_of_sdxl_says_so(sdxl: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sdxl, tmp_path / "v")
    scheduler = folder / "scheduler" / "scheduler_config.json"
    change = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
    scheduler.write_text(json.dumps(json.loads(scheduler.read_text()) | change))
    write_single_file(folder, tmp_path / "v.safetensors", torch.float32, {})
    with safe_open(tmp_path / "v.safetensors", "pt") as written:
        assert {"v_pred", "ztsnr"} <= set(written.keys())


def test_architectures_have_the_names_of_modelspec(sd: Path, sd2: Path, sdxl: Path) -> None:
    assert [architecture_of(read_diffusers_folder(folder)) for folder in (sd, sd2, sdxl)] == [
        "stable-diffusion-v1",
        "stable-diffusion-v2-768-v",
        "stable-diffusion-xl-v1-base",
    ]


def test_other_architecture_is_rejected(sd: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd, tmp_path / "other")
    index = json.loads((folder / "model_index.json").read_text()) | {"_class_name": "FluxPipeline"}
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"contains a FluxPipeline.*Stable Diffusion XL"):
        write_single_file(folder, tmp_path / "x.safetensors", torch.float32, {})
    assert not (tmp_path / "x.safetensors").exists()


def test_tensor_without_an_original_name_is_reported(sd: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd, tmp_path / "more")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    save_file(load_file(weights) | {"adapter.weight": torch.zeros(2)}, weights)
    with pytest.raises(ConfigError, match=r"'adapter\.weight' of unet does not exist in the original layout"):
        write_single_file(folder, tmp_path / "x.safetensors", torch.float32, {})


@pytest.mark.parametrize(("component", "name"), [("unet", "conv_in.bias"), ("vae", "decoder.conv_in.bias")])
def test_weights_that_do_not_fit_their_config_are_named(sd: Path, tmp_path: Path, component: str, name: str) -> None:
    folder = shutil.copytree(sd, tmp_path / "model")
    file = folder / component / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    if component == "vae":  # as in the files of Stable Diffusion 1.5
        tensors = {each.replace(".to_q.", ".query."): tensor for each, tensor in tensors.items()}
    count = len(tensors.pop(name))
    save_file(tensors, file)
    with pytest.raises(ConfigError, match=f"{component} has no '{name}', which its config.json requires"):
        write_single_file(folder, tmp_path / "x.safetensors", torch.float32, {})
    save_file({**tensors, name: torch.zeros(count + 1)}, file)
    with pytest.raises(ConfigError, match=rf"'{name}' has the shape \[{count + 1}\], but .* the shape \[{count}\]"):
        write_single_file(folder, tmp_path / "x.safetensors", torch.float32, {})


def test_file_with_other_shapes_is_rejected(sd: Path, sdxl: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_single_file(sd, file, torch.float32, {})
    with pytest.raises(ConfigError, match=r"is a Stable Diffusion 1 model, but the layout '.*' is a .* XL model"):
        write_diffusers_folder(file, sdxl, tmp_path / "again", torch.float32)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda layout: _set(layout / "text_encoder", "num_hidden_layers", 10**9), "num_hidden_layers 1000000000; the"),
        (lambda layout: _set(layout / "text_encoder", "attn_implementation", "a/b@main"), "code from .* 'a/b@main'"),
        (lambda layout: _set(layout / "text_encoder", "text_config", {"use_kernels": True}), r"use_kernels is 'True'"),
        (lambda layout: _set(layout / "unet", "layers_per_block", [[10**9]]), r"layers_per_block \[\[1000000000\]\]"),
        (lambda layout: _set(layout / "vae", "block_out_channels", "x"), "vae/config.json .* describes no network"),
        (lambda layout: _set(layout / "text_encoder", "vocab_size", 1e30), "text_encoder/config.json .* no network"),
        (lambda layout: _without(layout, "vae"), "names no vae"),
        (lambda layout: (layout / "tokenizer" / "x.json").symlink_to("/dev/zero"), "x.json' is a device"),
        (lambda layout: os.mkfifo(layout / "tokenizer" / "x.txt"), "x.txt' is a named pipe"),
        (lambda layout: os.truncate(layout / "unet" / "config.json", 1 << 40), r"config.json .*it is larger"),
    ],
)
def test_a_layout_of_somebody_else_is_refused_in_time(
    sd: Path, tmp_path: Path, change: Callable[[Path], object], sentence: str
) -> None:
    file, layout = tmp_path / "model.safetensors", shutil.copytree(sd, tmp_path / "layout")
    write_single_file(sd, file, torch.float32, {})
    change(layout)
    with pytest.raises(ConfigError, match=sentence):
        write_diffusers_folder(file, layout, tmp_path / "again", torch.float32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout", "model.safetensors"]


def test_of_a_layout_only_its_components_are_copied(sd: Path, tmp_path: Path) -> None:
    file, layout = tmp_path / "model.safetensors", shutil.copytree(sd, tmp_path / "layout")
    write_single_file(sd, file, torch.float32, {})
    (tmp_path / "private.txt").write_text("private")
    (layout / "more").mkdir()
    (layout / "more" / "x.txt").write_text("x")
    (layout / "all").symlink_to(tmp_path)
    (layout / "unet" / "again").symlink_to("..")
    (layout / "tokenizer" / "id_rsa").symlink_to(tmp_path / "private.txt")
    write_diffusers_folder(file, layout, tmp_path / "again", torch.float32)
    expected = {path.relative_to(sd) for path in sd.rglob("*")}
    assert {path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*")} == expected


def test_numbers_of_blocks_without_end_have_no_original_name(sd: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd, tmp_path / "model")
    _without(folder, "text_encoder")
    with pytest.raises(ConfigError, match="names no text_encoder"):
        write_single_file(folder, tmp_path / "x.safetensors", torch.float32, {})
    assert vae_name(f"encoder.down_blocks.{'9' * 5000}.resnets.0.conv1.weight", {"block_out_channels": [8]}) is None


def _without(folder: Path, component: str) -> None:
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {component: [None, None]}))


def _set(component: Path, name: str, value: object) -> None:
    config = json.loads((component / "config.json").read_text())
    (component / "config.json").write_text(json.dumps(config | {name: value}))


def test_weights_may_lie_in_several_files(sd: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd / "unet", tmp_path / "unet")
    weights = folder / "diffusion_pytorch_model.safetensors"
    tensors = sorted(load_file(weights).items())
    weights.unlink()
    for number, half in enumerate((tensors[::2], tensors[1::2])):
        save_file(dict(half), folder / f"diffusion_pytorch_model-0000{number + 1}-of-00002.safetensors")
    with ComponentWeights(folder) as files:
        assert sorted(files.names) == [name for name, _ in tensors]
        assert torch.equal(files.read(tensors[3][0]), tensors[3][1])


def test_a_stranger_of_a_name_has_no_place() -> None:
    assert open_clip_name("x.")("encoder.layers.0.unknown.weight", {}) is None
    assert unet_name("down_blocks.0.resnets.0.unknown.weight", {"layers_per_block": 2}) is None


@pytest.mark.parametrize("value", [None, 3, "x", {}, []])
def test_configs_that_do_not_fit_their_weights(value: object) -> None:
    with pytest.raises(ConfigError, match=r"vae/config.json: block_out_channels is .* at least 2 blocks"):
        vae_name("encoder.down_blocks.1.resnets.0.conv1.weight", {"block_out_channels": value})
    config = {"layers_per_block": 1, "up_block_types": value}
    with pytest.raises(ConfigError, match=r"unet/config.json: up_block_types is"):
        unet_name("up_blocks.0.upsamplers.0.conv.weight", config)
    with pytest.raises(ConfigError, match="layers_per_block"):
        unet_name("up_blocks.0.upsamplers.0.conv.weight", {})
