"""scripts/convert.py --merge: a LoRA in the weights of a model, as diffusers' `fuse_lora` merges it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.checkpoint.formats import write_lora
from scripts.convert import main
from tests.checkpoint.formats.adapted import ALL, SD, SDXL, adapted, weights_in

MODELS: dict[str, tuple[Any, Any]] = {
    "sd": (StableDiffusionPipeline, SD),
    "sd2": (StableDiffusionPipeline, SD),
    "sdxl": (StableDiffusionXLPipeline, SDXL),
}


def convert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def weights_below(folder: Path) -> dict[str, Tensor]:
    return {
        f"{file.parent.name}/{name.removeprefix('text_model.')}": tensor
        for file in folder.rglob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def fused(kind: Any, folder: Path, lora: Path, scale: float, out: Path) -> dict[str, Tensor]:
    """What diffusers makes of it."""
    pipeline = kind.from_pretrained(folder)
    pipeline.load_lora_weights(str(lora))
    pipeline.fuse_lora(lora_scale=scale)
    pipeline.unload_lora_weights()
    pipeline.save_pretrained(out)
    return weights_below(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("layout", "dora", "scale"), [("kohya", False, 0.7), ("diffusers", True, 1.0)])
def test_a_folder_and_a_single_file_become_what_diffusers_fuses(
    name: str, layout: Any, dora: bool, scale: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind, prefixes = MODELS[name]
    folder: Path = request.getfixturevalue(name)
    lora, out = tmp_path / "cats.safetensors", tmp_path / "merged"
    write_lora(
        lora, weights_in(adapted(folder, kind, prefixes, ALL, dora=dora), prefixes), layout, prefixes, {}, torch.float32
    )
    assert convert(folder, out, "--merge", lora, "--lora_scale", scale) == 0
    expected = fused(kind, folder, lora, scale, tmp_path / "fused")
    merged, before = weights_below(out), weights_below(folder)
    assert merged.keys() == expected.keys()
    for key, tensor in expected.items():
        assert (merged[key] - tensor).abs().max() <= 2e-6, key
    changed = {key for key in merged if not torch.equal(merged[key], before[key])}
    assert {key.partition("/")[0] for key in changed} == set(prefixes)
    kind.from_pretrained(out)  # complete

    single, whole, again = tmp_path / "base.safetensors", tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert convert(folder, single, "--to", "single_file") == 0
    assert convert(single, whole, "--merge", lora, "--lora_scale", scale) == 0
    assert convert(out, again, "--to", "single_file") == 0
    one, two = load_file(whole), load_file(again)
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())
    with safe_open(whole, "pt") as opened:
        assert opened.metadata()["modelspec.merged_from"] == "base, cats"
        assert str(tmp_path) not in str(opened.metadata())


def test_several_loras_are_merged_one_after_the_other(sd: Path, tmp_path: Path) -> None:
    lora = tmp_path / "cats.safetensors"
    weights = weights_in(adapted(sd, StableDiffusionPipeline, SD, ALL), SD)
    write_lora(lora, weights, "kohya", SD, {}, torch.float32)
    twice = ["--merge", lora, "--merge", lora, "--lora_scale", 0.25, "--lora_scale", 0.5]
    assert convert(sd, tmp_path / "twice", *twice) == 0
    assert convert(sd, tmp_path / "once", "--merge", lora, "--lora_scale", 0.75) == 0
    once, both = weights_below(tmp_path / "once"), weights_below(tmp_path / "twice")
    assert all((once[key] - both[key]).abs().max() < 1e-5 for key in once)


@pytest.mark.slow
def test_half_precision_stays_unless_asked_otherwise(sd: Path, tmp_path: Path) -> None:
    single, lora = tmp_path / "base.safetensors", tmp_path / "lora.safetensors"
    assert convert(sd, single, "--to", "single_file", "--dtype", "fp16") == 0
    write_lora(lora, weights_in(adapted(sd, StableDiffusionPipeline, SD, ALL), SD), "kohya", SD, {}, torch.float32)
    for arguments, dtype in (([], torch.float16), (["--dtype", "fp32"], torch.float32)):
        out = tmp_path / f"{dtype}.safetensors"
        assert convert(single, out, "--merge", lora, *arguments) == 0
        assert {tensor.dtype for tensor in load_file(out).values()} == {dtype}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SD", "OUT", "--merge", "SDXL_LORA"], "is a LoRA of another model"),
        (["SD", "OUT", "--merge", "WIDE"], r"unet\.conv_in of the shape [8, 81], but the model has one of the shape"),
        (["SD", "OUT", "--merge", "FOLDER"], "unet.my.layer of the shape [8, 4], but the model has no such layer"),
        (["SD", "OUT", "--merge", "STRANGE"], "unet.my.layer of the shape [8, 4], but the model has no such layer"),
        (["FILE", "OUT.safetensors", "--merge", "STRANGE"], "but the model has no such layer"),
        (["WIDE", "OUT.safetensors", "--merge", "WIDE"], "is a LoRA; --merge takes a model of Stable"),
        (["SD", "OUT.safetensors", "--merge", "WIDE"], "a merged diffusers folder is a folder"),
        (["SD", "OUT", "--merge", "none.safetensors"], "There is no file"),
        (["SD", "OUT", "--merge", "PICKLE"], "is a pickle"),
        (["SD", "OUT", "--merge", "WIDE", "--lora_scale", "nan"], "--lora_scale is nan"),
        (["SD", "OUT", "--merge", "WIDE", "--lora_scale", "1", "--lora_scale", "2"], "given 2 times and --merge 1"),
        (["WIDE", "OUT.safetensors", "--to", "kohya", "--lora_scale", "1"], "--lora_scale is for --merge"),
    ],
)
def test_what_cannot_be_merged_gives_a_sentence_and_writes_nothing(
    arguments: list[str], words: str, sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lora(name: str, stem: str, columns: int) -> Path:
        pair = {f"{stem}.lora_A.weight": torch.ones(2, columns), f"{stem}.lora_B.weight": torch.ones(8, 2)}
        save_file(pair, tmp_path / name)
        return tmp_path / name

    (tmp_path / "folder").mkdir()
    (tmp_path / "x.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    paths = {
        "SD": sd,
        "SDXL_LORA": lora("xl.safetensors", "text_encoder_2.text_projection", 4),
        "WIDE": lora("wide.safetensors", "unet.conv_in", 81),
        "STRANGE": lora("strange.safetensors", "unet.my.layer", 4),
        "FOLDER": lora("folder/pytorch_lora_weights.safetensors", "unet.my.layer", 4).parent,
        "PICKLE": tmp_path / "x.pt",
        "FILE": tmp_path / "file.safetensors",
        "OUT": tmp_path / "out",
        "OUT.safetensors": tmp_path / "out.safetensors",
    }
    if "FILE" in arguments:
        assert convert(sd, paths["FILE"], "--to", "single_file") == 0
    before = sorted(tmp_path.iterdir())
    assert convert(*(paths.get(argument, argument) for argument in arguments)) == 2
    message = capsys.readouterr().err
    assert message.startswith("Nothing was written: ")
    assert words.replace("\\", "") in message, message
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_numbers_that_do_not_fit_into_fp16_are_refused(
    sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest number of fp16 is 65504 (IEEE 754, binary16)."""
    single, out, lora = (tmp_path / f"{name}.safetensors" for name in ("base", "out", "lora"))
    pair = {"unet.conv_in.lora_A.weight": torch.full((1, 4, 3, 3), 300.0)}
    rows = len(load_file(next((sd / "unet").glob("*.safetensors")))["conv_in.weight"])
    save_file(pair | {"unet.conv_in.lora_B.weight": torch.full((rows, 1, 1, 1), 300.0)}, lora)
    assert convert(sd, single, "--to", "single_file", "--dtype", "fp16") == 0
    before = sorted(tmp_path.iterdir())
    weight = "model.diffusion_model.input_blocks.0.0.weight"
    for arguments in (
        [single, out, "--merge", lora],
        [sd, tmp_path / "folder", "--merge", lora, "--dtype", "fp16"],
    ):
        capsys.readouterr()
        assert convert(*arguments) == 2
        message = capsys.readouterr().err
        assert "fp16" in message, message
        assert "bf16 or fp32" in message, message
        assert (weight if arguments[0] == single else "conv_in.weight") in message
        assert sorted(tmp_path.iterdir()) == before
    assert convert(single, out, "--merge", lora, "--dtype", "fp32") == 0
    assert load_file(out)[weight].max() > 65504
    assert convert(out, tmp_path / "half.safetensors", "--to", "dtype", "--dtype", "fp16") == 2
    assert weight in capsys.readouterr().err
    assert convert(out, tmp_path / "half.safetensors", "--to", "dtype", "--dtype", "bf16") == 0


@pytest.mark.parametrize("component", ["unet", "vae", "text_encoder"])
def test_a_model_whose_numbers_are_not_finite_is_not_converted(
    sd: Path, component: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Path(shutil.copytree(sd, tmp_path / "damaged"))
    (file,) = (damaged / component).glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(".weight"))
    tensors[name].view(-1)[-1] = torch.inf
    save_file(tensors, file, {"format": "pt"})
    lora, single = tmp_path / "lora.safetensors", tmp_path / "single.safetensors"
    pair = {"unet.conv_in.lora_A.weight": torch.ones(1, 4, 3, 3), "unet.conv_in.lora_B.weight": torch.ones(8, 1, 1, 1)}
    save_file(pair, lora)
    save_file(tensors, single)
    tasks: list[list[object]] = [
        [damaged, tmp_path / "out.safetensors", "--to", "single_file"],
        [damaged, tmp_path / "out", "--merge", lora],
        [single, tmp_path / "out.safetensors", "--to", "dtype", "--dtype", "bf16"],
    ]
    if component != "vae":  # of which no LoRA changes anything
        tasks += [[sd, tmp_path / "out.safetensors", "--extract", damaged, "--rank", 1]]
    for arguments in tasks:
        assert convert(*arguments) == 2
        where = single if arguments[0] == single else file
        assert f"{str(where)!r} is damaged: {name!r} contains values that are no" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.safetensors").exists()


def test_a_null_character_in_a_path_is_a_sentence(sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(sd, tmp_path / "a\0b.safetensors", "--to", "single_file") == 2
    assert "control character" in capsys.readouterr().err
