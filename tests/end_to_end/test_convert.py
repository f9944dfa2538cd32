"""scripts/convert.py: every format to every other and back, and messages for what cannot be converted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from scripts.convert import main
from tests.runs import ROOT


def convert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every form, of a tiny Stable Diffusion."""
    from tests.families.tiny_pipelines import tiny_sd, tiny_sdxl

    folder = tmp_path_factory.mktemp("convert")
    tiny_sd(folder / "sd")
    tiny_sdxl(folder / "sdxl")
    module = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    lora = {f"{module}.lora_A.weight": torch.randn(2, 8), f"{module}.lora_B.weight": torch.randn(8, 2)}
    save_file(lora, folder / "lora.safetensors", metadata={"modelspec.title": "mine", "modelspec.hash_sha256": "0x1"})
    save_file({"<cat>": torch.randn(2, 16)}, folder / "learned_embeds.safetensors")
    (folder / "model.ckpt").write_bytes(b"PK\x03\x04" + bytes(100))
    whole = (folder / "lora.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-8])
    (folder / "empty.safetensors").touch()
    save_file(
        {"layer.vera_lambda_b": torch.ones(2), "layer.vera_lambda_d": torch.ones(2)}, folder / "strange.safetensors"
    )
    for name, source in {
        "run/model/pytorch_lora_weights.safetensors": "lora.safetensors",
        "run/backups/1/weights.safetensors": "lora.safetensors",
        "word/cat.safetensors": "learned_embeds.safetensors",
    }.items():
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(folder / source, folder / name)
    (folder / "run/backups/1/manifest.json").write_text("{}")
    assert convert(folder / "sd", folder / "one.safetensors", "--to", "single_file") == 0
    return folder


@pytest.mark.slow
def test_a_model_becomes_one_file_and_a_folder_again(place: Path, tmp_path: Path) -> None:
    from diffusers import StableDiffusionPipeline

    file, again = tmp_path / "one.safetensors", tmp_path / "again"
    assert convert(place / "sd", file, "--to", "single_file", "--dtype", "fp16") == 0
    assert convert(file, again, "--to", "diffusers", "--layout", place / "sd", "--dtype", "fp32") == 0
    unet = StableDiffusionPipeline.from_pretrained(again).unet.state_dict()
    before = load_file(place / "sd" / "unet" / "diffusion_pytorch_model.safetensors")
    assert all(torch.equal(unet[name], tensor.half().float()) for name, tensor in before.items())
    with safe_open(file, "pt") as written:
        assert written.metadata()["modelspec.architecture"] == "stable-diffusion-v1"
        assert written.metadata()["modelspec.implementation"] == "https://github.com/CompVis/stable-diffusion"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "one.safetensors"]


def tensors_below(folder: Path) -> dict[str, torch.Tensor]:
    """Under their part and name; the text encoders' as every version of transformers reads them."""
    return {
        f"{file.parent.name}/{name.removeprefix('text_model.')}": tensor
        for file in folder.rglob("*.safetensors")
        for name, tensor in load_file(file).items()
        if not name.endswith("position_ids")
    }


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings", "layout"),
    [
        ("tiny_sd", {}, {}),
        ("tiny_sd", {"channels": 9}, {"channels": 9}),
        ("tiny_sd", {"version": 2, "prediction_type": "v_prediction"}, {"version": 2}),
        ("tiny_sdxl", {"prediction_type": "v_prediction"}, {}),
    ],
)
def test_every_architecture_comes_back_equal_from_both_forms(
    make: str, settings: dict[str, Any], layout: dict[str, Any], tmp_path: Path
) -> None:
    """Including v-prediction with the layout of a model that predicts noise."""
    from tests.families import tiny_pipelines

    before = getattr(tiny_pipelines, make)(tmp_path / "before", **settings)
    shape = getattr(tiny_pipelines, make)(tmp_path / "shape", seed=1, **layout)
    file, after, again = tmp_path / "a.safetensors", tmp_path / "after", tmp_path / "b.safetensors"
    assert convert(before, file, "--to", "single_file") == 0
    assert convert(file, after, "--to", "diffusers", "--layout", shape) == 0
    assert convert(after, again, "--to", "single_file") == 0
    assert equal(tensors_below(before), tensors_below(after))
    assert equal(load_file(file), load_file(again))
    scheduler = json.loads((after / "scheduler" / "scheduler_config.json").read_text())
    assert scheduler["prediction_type"] == settings.get("prediction_type", "epsilon")


MUST = ("sai_model_spec", "architecture", "implementation", "title", "resolution")


def test_every_file_type_has_its_modelspec_metadata(place: Path, tmp_path: Path) -> None:
    """For sources without metadata; the headers of what was trained are in tests/training/actions/test_saving.py."""
    module = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k"
    lora = {f"{module}.lora_A.weight": torch.ones(2, 2048), f"{module}.lora_B.weight": torch.ones(8, 2)}
    save_file(lora, tmp_path / "lora.safetensors")
    save_file({"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)}, tmp_path / "word.safetensors")
    expected = {
        ("one.safetensors", "single_file"): ("-v1", "https://github.com/CompVis/stable-diffusion", "64x64"),
        ("lora.safetensors", "kohya"): ("/lora", "https://github.com/Stability-AI/generative-models", "1024x1024"),
        ("lora.safetensors", "diffusers"): ("/lora", "diffusers", "1024x1024"),
        ("word.safetensors", "embedding"): ("/textual-inversion", "diffusers", "1024x1024"),
    }
    for (name, form), (ending, implementation, resolution) in expected.items():
        out = place / name
        if form != "single_file":
            out = tmp_path / f"{form}.safetensors"
            assert convert(tmp_path / name, out, "--to", form) == 0
        with safe_open(out, "pt") as written:
            message = written.metadata()
        assert all(message[f"modelspec.{key}"] for key in MUST)
        assert message["modelspec.architecture"].endswith(ending)
        assert message["modelspec.implementation"] == implementation
        assert message["modelspec.resolution"] == resolution
        assert len(message["modelspec.hash_sha256"]) == 66
    # Nothing but the width of the text tells that it is for SDXL.
    assert any("lora_unet_middle_block_1_" in name for name in load_file(tmp_path / "kohya.safetensors"))


def test_a_lora_changes_its_layout_and_back(place: Path, tmp_path: Path) -> None:
    kohya, again = tmp_path / "kohya.safetensors", tmp_path / "again.safetensors"
    assert convert(place / "lora.safetensors", kohya, "--to", "kohya") == 0
    assert convert(kohya, again, "--to", "diffusers") == 0
    before, after = load_file(place / "lora.safetensors"), load_file(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with safe_open(again, "pt") as written:
        assert written.metadata()["modelspec.title"] == "mine"
        assert len(written.metadata()["modelspec.hash_sha256"]) == 66


def test_an_embedding_takes_the_form_of_other_tools(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "cat.safetensors"
    assert convert(place / "learned_embeds.safetensors", out, "--to", "embedding", "--dtype", "bf16") == 0
    assert {name: tensor.dtype for name, tensor in load_file(out).items()} == {"emb_params": torch.bfloat16}


def test_numbers_change_their_format(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "half.safetensors"
    assert convert(place / "lora.safetensors", out, "--to", "dtype", "--dtype", "fp16") == 0
    assert {tensor.dtype for tensor in load_file(out).values()} == {torch.float16}


BAD: dict[str, tuple[list[str], list[str]]] = {
    "missing": (["none.safetensors", "OUT", "--to", "kohya"], ["There is no", "none.safetensors"]),
    "cut short": (["cut.safetensors", "OUT", "--to", "kohya"], ["damaged or truncated"]),
    "pickle": (["model.ckpt", "OUT", "--to", "kohya"], ["is a pickle", ".safetensors file of the same model"]),
    "no LoRA": (["learned_embeds.safetensors", "OUT", "--to", "kohya"], ["is an embedding; --to kohya takes a LoRA"]),
    "no embedding": (["lora.safetensors", "OUT", "--to", "embedding"], ["is a LoRA; --to embedding takes"]),
    "embedding for diffusers": (["learned_embeds.safetensors", "OUT", "--to", "diffusers"], ["reads it as it is"]),
    "neither": (["strange.safetensors", "OUT", "--to", "kohya"], ["is not a LoRA", "LyCORIS"]),
    "neither, as embedding": (["strange.safetensors", "OUT", "--to", "embedding"], ["is not an embedding"]),
    "neither, as model": (["strange.safetensors", "again", "--to", "diffusers", "--layout", "sd"], ["has no", "needs"]),
    "empty": (["empty.safetensors", "OUT", "--to", "kohya"], ["is empty"]),
    "folder": (["sd", "OUT", "--to", "kohya"], ["is a diffusers folder", "--to kohya takes a .safetensors file"]),
    "file": (["lora.safetensors", "OUT", "--to", "single_file"], ["is a file with a LoRA", "--to kohya"]),
    "pickle as model": (["model.ckpt", "OUT", "--to", "single_file"], ["is a pickle"]),
    "folder of a LoRA": (
        ["run/model", "OUT", "--to", "single_file"],
        ["contains a LoRA, not a whole model", "pytorch_lora_weights.safetensors"],
    ),
    "folder of an embedding": (["word", "OUT", "--to", "single_file"], ["contains an embedding", "cat.safetensors"]),
    "run": (
        ["run", "OUT", "--to", "kohya"],
        ["folder of a run", "Give the model that the run saved: 'run/model'"],
    ),
    "backup": (["run/backups/1", "OUT", "--to", "single_file"], ["a backup, which only Tandem can read", "run/model"]),
    "run as layout": (["lora.safetensors", "again", "--to", "diffusers", "--layout", "run"], ["is a LoRA"]),
    "no dtype": (["lora.safetensors", "OUT", "--to", "dtype"], ["needs --dtype"]),
    "no pipeline": (["sd/unet", "OUT", "--to", "single_file"], ["is not a diffusers folder", "model_index.json"]),
    "not a model": (
        ["lora.safetensors", "again", "--to", "diffusers", "--layout", "sd"],
        ["is a LoRA", "Omit --layout"],
    ),
    "layout of a run": (
        ["one.safetensors", "again", "--to", "diffusers", "--layout", "run"],
        ["folder of a run"],
    ),
    "name of a file": (["one.safetensors", "OUT", "--to", "diffusers", "--layout", "sd"], ["--layout writes a folder"]),
    "model again": (["one.safetensors", "OUT", "--to", "single_file"], ["file with a whole model", "--to dtype"]),
    "model as LoRA": (["one.safetensors", "OUT", "--to", "kohya"], ["is a whole model; --to kohya takes a LoRA"]),
    "needless layout": (["lora.safetensors", "OUT", "--to", "kohya", "--layout", "sd"], ["omit it"]),
    "ending": (["lora.safetensors", "out.pt", "--to", "kohya"], ["does not end in .safetensors"]),
    "exists": (["lora.safetensors", "learned_embeds.safetensors", "--to", "kohya"], ["already exists", "--overwrite"]),
    "itself": (["lora.safetensors", "lora.safetensors", "--to", "kohya", "--overwrite"], ["already exists"]),
    "folder is a file": (["lora.safetensors", "lora.safetensors/OUT", "--to", "kohya"], ["lora.safetensors"]),
    "wrong for a new folder": (["lora.safetensors", "none/new/OUT", "--to", "embedding"], ["is a LoRA"]),
    "inside": (["sd", "sd/merged", "--merge", "lora.safetensors"], ["inside 'sd'"]),
    "inside, by another name": (["sd", "sd/unet/../OUT", "--to", "single_file"], ["inside 'sd'"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_a_sentence_and_writes_nothing(
    case: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in place.iterdir())
    arguments, words = BAD[case]
    assert convert(*(argument.replace("OUT", "out.safetensors") for argument in arguments)) == 2
    message = capsys.readouterr().err
    assert message.startswith("Nothing was written: ")
    assert all(word in message for word in words), message
    assert sorted((path.name, path.stat().st_mtime_ns) for path in place.iterdir()) == before


def spoiled(tensors: dict[str, Any], case: str) -> dict[str, Any]:
    stem = "unet.conv_in"
    return {
        "unknown": {**tensors, "unet.conv_in.oft_r": torch.ones(2)},
        "incomplete": {f"{stem}.lora_A.weight": torch.ones(2, 4)},
        "uneven": {f"{stem}.lora_A.weight": torch.ones(2, 4), f"{stem}.lora_B.weight": torch.ones(4, 3)},
        "other": {"prior.x.lora_A.weight": torch.ones(2, 4), "prior.x.lora_B.weight": torch.ones(4, 2)},
    }[case]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown", "'unet.conv_in.oft_r'"),
        ("incomplete", "is incomplete"),
        ("uneven", "incompatible shapes"),
        ("other", "is a LoRA of another model"),
    ],
)
def test_a_lora_that_would_lose_something_is_refused(
    case: str, words: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(spoiled(load_file(place / "lora.safetensors"), case), tmp_path / "in.safetensors")
    assert convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors", "--to", "kohya") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


def test_a_layout_of_another_architecture_is_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.safetensors"
    assert convert(place / "sd", file, "--to", "single_file") == 0
    assert convert(file, tmp_path / "again", "--to", "diffusers", "--layout", place / "sdxl") == 2
    assert "is a Stable Diffusion 1 model, but the layout" in capsys.readouterr().err
    assert convert(file, tmp_path / "again.safetensors", "--to", "diffusers") == 2
    assert "Add --layout FOLDER" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["one.safetensors"]


def test_a_full_disk_is_named(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resource = pytest.importorskip("resource")  # not on Windows
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the kernel's own refusal to write on
    try:
        code = convert(place / "sd", tmp_path / "one.safetensors", "--to", "single_file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    assert f"Nothing was written: {tmp_path / 'one.safetensors'}: File too large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_with_overwrite(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.write_text("mine")
    assert convert(place / "lora.safetensors", out, "--to", "kohya") == 2
    assert out.read_text() == "mine"
    assert convert(place / "lora.safetensors", out, "--to", "kohya", "--overwrite") == 0
    assert len(load_file(out)) == 3


def test_the_command_itself(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "convert.py"), "none", "out.safetensors", "--to", "kohya"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Nothing was written: There is no 'none'.\n"
