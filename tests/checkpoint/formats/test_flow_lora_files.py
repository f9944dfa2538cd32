"""scripts/convert.py on LoRAs of flow-matching models: merged as diffusers fuses them, and extracted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from modules.checkpoint.formats import Factor, LohaWeights, LokrWeights, LoraWeights, read_lora, write_lora
from modules.config import ConfigError
from modules.diffusion.quiet_libraries import quiet_libraries
from scripts.convert import main

FLOW = {"transformer": ("transformer", "")}
FAMILIES = (
    *("z_image", "flux", "flux2", "chroma", "krea2", "qwen_image", "stable_diffusion_3", "lumina2", "ernie_image"),
    "wan",
)


def convert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def loaded(folder: Path) -> Any:
    """The pipeline with its transformer alone."""
    others = {
        path.name: None for path in folder.glob("*") if path.name.startswith(("text_encoder", "tokenizer", "vae"))
    }
    with quiet_libraries():
        return DiffusionPipeline.from_pretrained(folder, **others)


def lora_of(pipeline: Any) -> list[LoraWeights]:
    """Random, for every linear layer."""
    generator = torch.Generator().manual_seed(0)
    return [
        LoraWeights(
            "transformer",
            name,
            torch.randn(2, layer.in_features, generator=generator),
            torch.randn(layer.out_features, 2, generator=generator) / 10,
            alpha=1.0,
            magnitude=None,
        )
        for name, layer in pipeline.transformer.named_modules()
        if isinstance(layer, nn.Linear)
    ]


def keys_of_comfyui(file: dict[str, Tensor]) -> set[str]:
    """Of all linear layers in a transformer's file, as comfy/lora.py (model_lora_keys_unet, Comfy-Org/ComfyUI ec93dca)
    derives them from the names that the model has there: lora_unet_ and the name without .weight, dots as underscores.
    """
    bare = {name.removeprefix("model.diffusion_model."): tensor for name, tensor in file.items()}
    layers = (name for name, tensor in bare.items() if name.endswith(".weight") and tensor.dim() == 2)
    return {"lora_unet_" + name.removesuffix(".weight").replace(".", "_") for name in layers}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_merged_lora_is_what_diffusers_fuses_and_is_extracted_again(family: str, flow: Any, tmp_path: Path) -> None:
    folder: Path = flow(family)
    lora, out = tmp_path / "cats.safetensors", tmp_path / "merged"
    pipeline = loaded(folder)
    weights = lora_of(pipeline)
    write_lora(lora, weights, "diffusers", FLOW, {}, torch.float32)
    assert convert(folder, out, "--merge", lora, "--lora_scale", 0.7) == 0
    with quiet_libraries():
        pipeline.load_lora_weights(str(lora))
        pipeline.fuse_lora(lora_scale=0.7)
        pipeline.unload_lora_weights()
    merged = loaded(out).transformer.state_dict()
    expected = pipeline.transformer.state_dict()
    assert merged.keys() == expected.keys()
    assert all((tensor - expected[name]).abs().max() <= 2e-6 for name, tensor in merged.items())
    kept = [path for path in folder.rglob("*.safetensors") if path.parent.name != "transformer"]
    assert kept
    assert all((out / path.relative_to(folder)).read_bytes() == path.read_bytes() for path in kept)

    single, same = tmp_path / "single.safetensors", tmp_path / "same.safetensors"
    assert convert(folder, single, "--to", "single_file") == 0
    assert convert(single, tmp_path / "both.safetensors", "--merge", lora, "--lora_scale", 0.7) == 0
    assert convert(out, same, "--to", "single_file") == 0
    of_file, of_folder = load_file(tmp_path / "both.safetensors"), load_file(same)
    assert of_file.keys() == of_folder.keys()
    assert all(torch.equal(tensor, of_folder[name]) for name, tensor in of_file.items())

    kohya, twice = tmp_path / "kohya.safetensors", tmp_path / "twice.safetensors"
    assert convert(lora, kohya, "--to", "kohya") == 0
    assert {name.partition(".")[0] for name in load_file(kohya)} == keys_of_comfyui(of_file)
    assert convert(single, twice, "--merge", kohya, "--lora_scale", 0.7) == 0
    assert all((tensor - of_file[name]).abs().max() <= 2e-6 for name, tensor in load_file(twice).items())

    if family not in ("z_image", "flux2"):
        return
    assert convert(folder, tmp_path / "own.safetensors", "--extract", out, "--rank", 2) == 0
    own = {one.module: one.delta() for one in read_lora(tmp_path / "own.safetensors", FLOW)}
    assert own.keys() == {one.module for one in weights}
    for one in weights:
        assert (own[one.module] - 0.7 * one.delta()).abs().max() <= 1e-4 * one.delta().abs().max() + 1e-6, one.module


@pytest.mark.parametrize(
    ("family", "style"),
    [*((family, "kohya") for family in FAMILIES), ("flux2", "ai-toolkit"), ("z_image", "ai-toolkit")],
)
def test_a_lora_with_the_names_of_the_models_own_code_changes_its_weights(
    family: str, style: str, flow: Any, tmp_path: Path
) -> None:
    """Merged into the folder it gives the file in which W + alpha / rank B A takes the place of each W."""
    folder: Path = flow(family)
    before, after = tmp_path / "before.safetensors", tmp_path / "after.safetensors"
    assert convert(folder, before, "--to", "single_file") == 0
    expected = load_file(before)
    generator = torch.Generator().manual_seed(0)
    lora: dict[str, Any] = {}
    for name, weight in expected.items():
        module = name.removeprefix("model.diffusion_model.").removesuffix(".weight")
        if weight.dim() != 2 or not name.endswith(".weight") or "pos_embed" in name:
            continue
        down = torch.randn(2, weight.shape[1], generator=generator)
        up = torch.randn(weight.shape[0], 2, generator=generator) / 10
        if style == "kohya":
            stem = "lora_unet_" + module.replace(".", "_")
            lora |= {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up, f"{stem}.alpha": torch.tensor(1.0)}
        else:
            lora |= {f"diffusion_model.{module}.lora_A.weight": down, f"diffusion_model.{module}.lora_B.weight": up}
        expected[name] = weight + up @ down * (0.5 if style == "kohya" else 1)
    save_file(lora, tmp_path / "lora.safetensors")
    assert convert(folder, tmp_path / "merged", "--merge", tmp_path / "lora.safetensors") == 0
    assert convert(tmp_path / "merged", after, "--to", "single_file") == 0
    found = load_file(after)
    assert found.keys() == expected.keys()
    assert all((tensor - expected[name]).abs().max() <= 2e-6 for name, tensor in found.items())


def test_loras_of_flow_models_keep_diffusers_names(
    flow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora, out = tmp_path / "cats.safetensors", tmp_path / "out.safetensors"
    write_lora(lora, lora_of(loaded(flow("flux"))), "diffusers", FLOW, {}, torch.float32)
    assert convert(lora, out, "--to", "diffusers", "--dtype", "bf16") == 0
    with safe_open(out, "pt") as written:
        assert written.metadata()["modelspec.architecture"] == "flux-1/lora"
    assert convert(lora, tmp_path / "small.safetensors", "--resize", "--rank", 1) == 0
    assert load_file(tmp_path / "small.safetensors").keys() == load_file(out).keys() == load_file(lora).keys()
    text_encoder = {f"lora_te1_text_model.lora_{side}.weight": torch.ones(2, 2) for side in ("up", "down")}
    save_file(text_encoder, tmp_path / "clip.safetensors")
    assert convert(flow("flux"), tmp_path / "x", "--merge", tmp_path / "clip.safetensors") == 2
    assert "'lora_te1_text_model' is no layer of the transformer, which a LoRA of this model" in capsys.readouterr().err
    stem = "lora_transformer_transformer_blocks_0_attn_to_q"  # OneTrainer
    save_file({f"{stem}.lora_{side}.weight": torch.ones(2, 2) for side in ("up", "down")}, tmp_path / "one.safetensors")
    (read,) = read_lora(tmp_path / "one.safetensors", FLOW)
    assert read.module == "transformer_blocks.0.attn.to_q"
    single = {"transformer.single_transformer_blocks.0.attn.to_q": (torch.ones(1, 16), torch.ones(16, 1))}
    either = {f"{name}.lora_{side}.weight": pair[side == "B"] for name, pair in single.items() for side in "AB"}
    save_file(either, tmp_path / "either.safetensors")  # of FLUX.1 or Chroma
    assert convert(tmp_path / "either.safetensors", tmp_path / "same.safetensors", "--to", "diffusers") == 0
    assert convert(flow("z_image"), tmp_path / "x", "--merge", tmp_path / "either.safetensors") == 2
    assert "it belongs to the family chroma or flux" in capsys.readouterr().err


def test_a_lora_in_kohyas_layout_is_resized_and_named_for_comfyui(
    flow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its header has no alpha that ComfyUI would miss, and its note says which layers ComfyUI does not know."""
    stems = ("lora_unet_double_blocks_0_img_attn_qkv", "lora_unet_double_stream_modulation_img_lin")
    rows = {stems[0]: 48, stems[1]: 96}
    save_file(
        {
            **{f"{stem}.lora_down.weight": torch.randn(2, 16) for stem in stems},
            **{f"{stem}.lora_up.weight": torch.randn(rows[stem], 2) for stem in stems},
            **{f"{stem}.alpha": torch.tensor(1.0) for stem in stems},
        },
        tmp_path / "cats.safetensors",
    )
    assert convert(tmp_path / "cats.safetensors", tmp_path / "same.safetensors", "--to", "diffusers") == 0
    note = capsys.readouterr().err
    assert "or use its copy in the kohya layout (--to kohya), which holds alpha for each layer" in note
    assert "ComfyUI leaves out what same.safetensors has for double_stream_modulation_img.linear" in note
    assert convert(tmp_path / "cats.safetensors", tmp_path / "small.safetensors", "--resize", "--rank", 2) == 0
    assert "header" not in capsys.readouterr().err
    before = {one.module: one.delta() for one in read_lora(tmp_path / "cats.safetensors", FLOW)}
    for one in read_lora(tmp_path / "small.safetensors", FLOW):
        assert one.alpha == one.rank
        assert torch.allclose(one.delta(), before.pop(one.module), atol=1e-5)
    assert not before


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_diffusers_names_with_kohyas_matrices_are_read(prefix: str, tmp_path: Path) -> None:
    """Qwen-Image-Lightning has them without a prefix."""
    stem = f"{prefix}transformer_blocks.3.attn.to_q"
    matrices = {f"{stem}.lora_{side}.weight": torch.ones(2, 2) for side in ("up", "down")}
    save_file(matrices | {f"{stem}.alpha": torch.tensor(1.0)}, tmp_path / "cats.safetensors")
    (read,) = read_lora(tmp_path / "cats.safetensors", FLOW)
    assert (read.module, read.alpha) == ("transformer_blocks.3.attn.to_q", 1.0)


def test_a_fused_layer_with_wrong_rows_is_damaged(tmp_path: Path) -> None:
    stem = "lora_unet_double_blocks_0_img_attn_qkv"
    save_file(
        {f"{stem}.lora_down.weight": torch.ones(2, 16), f"{stem}.lora_up.weight": torch.ones(47, 2)},
        tmp_path / "cats.safetensors",
    )
    with pytest.raises(ConfigError, match="another number of rows than in any model with these names"):
        read_lora(tmp_path / "cats.safetensors", FLOW)


def test_a_part_of_a_fused_layer_is_written_with_zeros_for_the_others(
    flow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora, kohya = tmp_path / "cats.safetensors", tmp_path / "kohya.safetensors"
    named = ("single_transformer_blocks.0.attn.to_k", "transformer_blocks.0.attn.to_v")
    weights = [one for one in lora_of(loaded(flow("flux"))) if one.module in named]
    write_lora(lora, weights, "diffusers", FLOW, {"modelspec.architecture": "flux-1-dev/lora"}, torch.float32)
    assert convert(lora, kohya, "--to", "kohya") == 0
    assert load_file(kohya)["lora_unet_single_blocks_0_linear1.lora_up.weight"].shape == (7 * 16, 2)
    with safe_open(kohya, "pt") as written:
        assert written.metadata()["modelspec.implementation"] == "https://github.com/black-forest-labs/flux"
    again = {one.module: one.delta() for one in read_lora(kohya, FLOW)}
    before = {one.module: one.delta() for one in weights}
    assert all(torch.allclose(delta, before.get(name, torch.zeros_like(delta))) for name, delta in again.items())
    assert before.keys() <= again.keys()
    write_lora(lora, weights[:1], "diffusers", FLOW, {}, torch.float32)  # whose layer several models have
    assert convert(lora, tmp_path / "x.safetensors", "--to", "kohya") == 2
    assert "or whose names do not tell which model it is for" in capsys.readouterr().err


def test_loha_and_lokr_have_the_names_that_comfyui_reads(tmp_path: Path) -> None:
    """`transformer.` and diffusers' name (comfy/lora.py, model_lora_keys_unet), then the matrices of
    comfy/weight_adapter/loha.py and lokr.py, whose alpha is a tensor, too.
    """
    module, pair = "layers.0.attention.to_q", Factor(torch.ones(4, 2), torch.ones(2, 4))
    written = {}
    for kind, weights in (
        ("hada", LohaWeights("transformer", module, (pair, pair), 1.0, None)),
        ("lokr", LokrWeights("transformer", module, (Factor(torch.ones(2, 2)), pair), 1.0, None)),
    ):
        write_lora(tmp_path / "x.safetensors", [weights], "diffusers", FLOW, {}, torch.float32)
        written[kind] = load_file(tmp_path / "x.safetensors").keys()
    matrices = {
        "hada": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
        "lokr": ("lokr_w1", "lokr_w2_a", "lokr_w2_b"),
    }
    for kind, names in matrices.items():
        assert written[kind] == {f"transformer.{module}.{name}" for name in (*names, "alpha")}
