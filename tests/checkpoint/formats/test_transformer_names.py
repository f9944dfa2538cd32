"""One file of a flow-matching transformer: diffusers' own reader makes the same network of it, and it can be undone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import diffusers
import pytest
import torch
from diffusers.loaders import single_file_utils
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.checkpoint.formats import single_file
from modules.checkpoint.formats.diffusers_folder import read_diffusers_folder
from modules.checkpoint.formats.single_file import architecture_of
from modules.diffusion.transformer_files.names import is_transformer_file
from modules.facts import all_facts
from scripts.convert import main

WEIGHTS: Final = Path("transformer", "diffusion_pytorch_model.safetensors")
# Names by which ComfyUI recognises each model (comfy/model_detection.py, detect_unet_config), and of fused layers.
EXPECTED: Final = {
    "z_image": ("cap_embedder.1.weight", "noise_refiner.0.attention.k_norm.weight", "layers.0.attention.qkv.weight"),
    "flux": ("double_blocks.0.img_attn.norm.key_norm.scale", "img_in.weight", "guidance_in.in_layer.weight"),
    "stable_diffusion_3": (
        "model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight",
        "model.diffusion_model.x_embedder.proj.weight",
        "model.diffusion_model.pos_embed",
    ),
    "qwen_image": ("txt_norm.weight", "img_in.weight", "transformer_blocks.0.img_mod.1.weight"),
    "flux2": ("double_stream_modulation_img.lin.weight", "single_blocks.0.linear1.weight"),
    "chroma": ("distilled_guidance_layer.norms.0.scale", "double_blocks.0.txt_attn.qkv.weight"),
    "lumina2": ("cap_embedder.1.weight", "noise_refiner.0.attention.k_norm.weight", "layers.0.attention.qkv.weight"),
    "ernie_image": ("layers.0.mlp.linear_fc2.weight", "layers.0.self_attention.to_q.weight"),
    "wan": ("head.modulation", "blocks.0.self_attn.q.weight", "blocks.0.ffn.0.weight"),
    "wan22_5b": ("head.modulation", "blocks.0.cross_attn.k.weight", "blocks.0.ffn.2.bias"),
    "krea2": ("txtfusion.projector.weight", "blocks.0.attn.qknorm.qnorm.scale", "txtmlp.0.scale"),
}


# diffusers' functions that know the rows of each part of a fused layer: 3072 in FLUX.1, and 4 times that in its MLPs.
_FLUX_ROWS: Final = {r"^single_.*\.attn\.to_": 3072, r"^single_.*\.proj_mlp\.": 4 * 3072}
READERS: Final[dict[str, tuple[Callable[..., Any], dict[str, int]]]] = {
    "flux": (single_file_utils.convert_flux_transformer_checkpoint_to_diffusers, _FLUX_ROWS),
    "chroma": (single_file_utils.convert_chroma_transformer_checkpoint_to_diffusers, _FLUX_ROWS),
    "lumina2": (single_file_utils.convert_lumina2_to_diffusers, {r"attn\.to_q": 2304, r"attn\.to_[kv]": 768}),
}


def convert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def copy_configs(folder: Path, target: Path) -> None:
    """What of a pipeline is read for a single file, but for the weights."""
    for path in ("model_index.json", "transformer/config.json", "vae/config.json", "text_encoder/config.json"):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes((folder / path).read_bytes())


@pytest.mark.parametrize("family", EXPECTED)
def test_a_transformer_becomes_one_file_and_a_folder_again(family: str, flow: Any, tmp_path: Path) -> None:
    folder: Path = flow(family)
    file, again = tmp_path / "one.safetensors", tmp_path / "again"
    assert convert(folder, file, "--to", "single_file") == 0
    assert set(EXPECTED[family]) <= load_file(file).keys()
    with safe_open(file, "pt") as opened:
        architecture = opened.metadata()["modelspec.architecture"]
    assert architecture == architecture_of(read_diffusers_folder(folder))
    assert architecture.startswith(all_facts()[family].architecture)
    assert is_transformer_file(load_file(file).keys())
    assert convert(file, again, "--to", "diffusers", "--layout", folder) == 0
    before = load_file(folder / WEIGHTS)
    assert equal(load_file(again / WEIGHTS), before)
    assert {path.name for path in again.rglob("*.safetensors")} == {path.name for path in folder.rglob("*.safetensors")}

    config = json.loads((folder / "transformer" / "config.json").read_text())
    kind = getattr(diffusers, config["_class_name"])
    if family not in READERS:  # of these diffusers reads the real width alone, see the next test
        read = kind.from_single_file(str(file), config=str(folder), subfolder="transformer", local_files_only=True)
        assert equal(read.state_dict(), kind.from_pretrained(folder, subfolder="transformer").state_dict())


@pytest.mark.parametrize("family", READERS)
def test_diffusers_splits_the_fused_layers_of_real_width_as_they_were(
    family: str, flow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of fused layers are written in diffusers' functions; columns are free, and not those of the config."""
    monkeypatch.setattr(single_file, "require_fitting_weights", lambda *_: None)
    folder = flow(family)
    wide, file = tmp_path / "wide", tmp_path / "one.safetensors"
    tensors = load_file(folder / WEIGHTS)
    generator = torch.Generator().manual_seed(1)
    for name in tensors:
        rows = next((rows for layer, rows in READERS[family][1].items() if re.search(layer, name)), 0)
        if rows:
            tensors[name] = torch.randn(rows, *[1] * (tensors[name].dim() - 1), generator=generator)
    copy_configs(folder, wide)
    save_file(tensors, wide / WEIGHTS)
    index = json.loads((folder / "model_index.json").read_text())
    (wide / "model_index.json").write_text(json.dumps({**index, "text_encoder_2": [None, None]}))
    assert convert(wide, file, "--to", "single_file") == 0
    read = READERS[family][0](load_file(file))
    assert equal(read, tensors)


def test_a_file_keeps_its_number_format_and_needs_a_whole_model(
    flow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = tmp_path / "model", flow("z_image")
    copy_configs(folder, source)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, source / WEIGHTS)
    assert convert(source, tmp_path / "one.safetensors", "--to", "single_file") == 0
    assert {tensor.dtype for tensor in load_file(tmp_path / "one.safetensors").values()} == {torch.bfloat16}
    key = "layers.0.attention.to_k.weight"
    for missing, words in (({key}, "transformer has no 'layers.0.attention.to_k.weight'"), (set(), "strange")):
        kept = {name: tensor for name, tensor in tensors.items() if name not in missing}
        save_file(kept if missing else kept | {"strange": torch.ones(1)}, source / WEIGHTS)
        assert convert(source, tmp_path / "two.safetensors", "--to", "single_file") == 2
        assert words in capsys.readouterr().err
    assert convert(tmp_path / "one.safetensors", tmp_path / "x", "--to", "diffusers", "--layout", flow("krea2")) == 2
    assert "which transformer of a Krea2Pipeline needs" in capsys.readouterr().err
    assert not (tmp_path / "two.safetensors").exists()
    assert not (tmp_path / "x").exists()


def with_scale(tensors: dict[str, Tensor]) -> None:
    tensors["double_blocks.0.img_attn.qkv.SCB"] = torch.tensor(0.01)


def with_another_block(tensors: dict[str, Tensor]) -> None:
    tensors["double_blocks.1.img_mlp.0.bias"] = torch.ones(2)


def in_whole_numbers(tensors: dict[str, Tensor]) -> None:
    tensors["img_in.weight"] = tensors["img_in.weight"].to(torch.int8)


def with_wide_layer(tensors: dict[str, Tensor]) -> None:
    tensors["single_blocks.0.linear1.weight"] = tensors["single_blocks.0.linear1.weight"].repeat(2, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_scale, "is quantised: its weights are to be multiplied by 'double_blocks.0.img_attn.qkv.SCB'"),
        (with_another_block, "has no place (the file belongs to the family flux)"),
        (in_whole_numbers, "'img_in.weight' is of whole numbers, so the file is quantised"),
        (with_wide_layer, "has 224 rows, but transformer of the layout"),
    ],
)
def test_what_would_be_lost_of_a_transformer_is_refused(
    change: Callable[[dict[str, Tensor]], None],
    words: str,
    flow: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "one.safetensors"
    assert convert(flow("flux"), file, "--to", "single_file") == 0
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    assert convert(file, tmp_path / "out", "--to", "diffusers", "--layout", flow("flux")) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["one.safetensors"]


def test_other_components_of_a_whole_file_come_from_the_layout(flow: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    assert convert(flow("z_image"), file, "--to", "single_file") == 0
    tensors = {f"model.diffusion_model.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(tensors | {"vae.x": torch.ones(1), "model.diffusion_model.norm_final.weight": torch.ones(1)}, file)
    layout = tmp_path / "layout"
    shutil.copytree(flow("z_image"), layout)
    index = json.loads((layout / "model_index.json").read_text())
    (layout / "model_index.json").write_text(json.dumps(index | {"image_encoder": ["transformers", "CLIPModel"]}))
    (layout / "image_encoder").mkdir()  # which training does not use: it is left out
    (layout / "image_encoder" / "config.json").write_text("{}")
    assert convert(file, tmp_path / "out", "--to", "diffusers", "--layout", layout) == 0
    assert equal(load_file(tmp_path / "out" / WEIGHTS), load_file(flow("z_image") / WEIGHTS))
    assert not (tmp_path / "out" / "image_encoder").exists()


def test_a_folder_with_a_missing_tensor_or_file_becomes_no_single_file(
    flow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(flow("flux"), folder)
    tensors = load_file(folder / WEIGHTS)
    del tensors["x_embedder.weight"]
    save_file(tensors, folder / WEIGHTS)
    assert convert(folder, tmp_path / "one.safetensors", "--to", "single_file") == 2
    assert "transformer has no 'x_embedder.weight'" in capsys.readouterr().err
    (folder / WEIGHTS).rename(folder / "transformer" / "a-1-of-2.safetensors")
    index = {"weight_map": {"x_embedder.weight": "a-2-of-2.safetensors"}}
    (folder / "transformer" / "a.safetensors.index.json").write_text(json.dumps(index))
    assert convert(folder, tmp_path / "one.safetensors", "--to", "single_file") == 2
    assert "there is no a-2-of-2.safetensors, which a.safetensors.index.json names" in capsys.readouterr().err
    assert convert(folder / "transformer", tmp_path / "one.safetensors", "--to", "single_file") == 2
    assert f"Give the whole model: {str(folder)!r}" in capsys.readouterr().err


def test_a_transformer_file_is_called_by_its_name(
    flow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.safetensors"
    assert convert(flow("flux"), file, "--to", "single_file") == 0
    assert convert(file, tmp_path / "x.safetensors", "--to", "diffusers") == 2
    assert "Add --layout FOLDER" in capsys.readouterr().err
    assert convert(file, tmp_path / "x.safetensors", "--to", "kohya") == 2
    assert "is the transformer of a flow-matching model; --to kohya takes a LoRA" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert convert(file, tmp_path / "file", "--to", "diffusers", "--layout", flow("flux"), "--overwrite") == 2
    assert "exists and is no folder, and the result is one" in capsys.readouterr().err


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
