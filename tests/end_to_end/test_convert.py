"""scripts/convert.py: every form into the other and back, and a sentence for everything that cannot be."""

from __future__ import annotations

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
    return folder


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
    out = tmp_path / "half.safetensors"
    assert convert(place / "lora.safetensors", out, "--to", "dtype", "--dtype", "fp16") == 0
    assert {tensor.dtype for tensor in load_file(out).values()} == {torch.float16}


BAD: dict[str, tuple[list[str], list[str]]] = {
    "missing": (["none.safetensors", "OUT", "--to", "kohya"], ["There is no", "none.safetensors"]),
    "cut short": (["cut.safetensors", "OUT", "--to", "kohya"], ["damaged or cut short"]),
    "pickle": (["model.ckpt", "OUT", "--to", "kohya"], ["is a pickle", ".safetensors file of the same model"]),
    "no LoRA": (["learned_embeds.safetensors", "OUT", "--to", "kohya"], ["holds no LoRA"]),
    "no embedding": (["lora.safetensors", "OUT", "--to", "embedding"], ["is not an embedding"]),
    "folder": (["sd", "OUT", "--to", "kohya"], ["is a folder", "--to single_file"]),
    "file": (["lora.safetensors", "OUT", "--to", "single_file"], ["is a file", "takes a diffusers folder"]),
    "no dtype": (["lora.safetensors", "OUT", "--to", "dtype"], ["needs --dtype"]),
    "no pipeline": (["sd/unet", "OUT", "--to", "single_file"], ["no diffusers folder", "model_index.json"]),
    "not a model": (["lora.safetensors", "again", "--to", "diffusers", "--layout", "sd"], ["has no", "needs"]),
    "needless layout": (["lora.safetensors", "OUT", "--to", "kohya", "--layout", "sd"], ["leave it out"]),
    "ending": (["lora.safetensors", "out.pt", "--to", "kohya"], ["does not end in .safetensors"]),
    "exists": (["lora.safetensors", "learned_embeds.safetensors", "--to", "kohya"], ["exists already", "--overwrite"]),
    "itself": (["lora.safetensors", "lora.safetensors", "--to", "kohya", "--overwrite"], ["exists already"]),
    "no folder": (["lora.safetensors", "none/out.safetensors", "--to", "kohya"], ["no folder", "none"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_a_sentence_and_writes_nothing(
    case: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in place.iterdir())
    arguments, words = BAD[case]
    assert convert(*(argument.replace("OUT", "out.safetensors") for argument in arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("Nothing was written: ")
    assert all(word in said for word in words), said
    assert sorted((path.name, path.stat().st_mtime_ns) for path in place.iterdir()) == before


def spoiled(tensors: dict[str, Any], case: str) -> dict[str, Any]:
    stem = "unet.conv_in"
    return {
        "unknown": {**tensors, "unet.conv_in.oft_r": torch.ones(2)},
        "incomplete": {f"{stem}.lora_A.weight": torch.ones(2, 4)},
        "uneven": {f"{stem}.lora_A.weight": torch.ones(2, 4), f"{stem}.lora_B.weight": torch.ones(4, 3)},
        "other": {"transformer.x.lora_A.weight": torch.ones(2, 4), "transformer.x.lora_B.weight": torch.ones(4, 2)},
    }[case]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown", "'unet.conv_in.oft_r' belongs to no LoRA"),
        ("incomplete", "is incomplete"),
        ("uneven", "do not fit each other"),
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


def test_a_model_of_another_architecture_does_not_fit_the_layout(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.safetensors"
    assert convert(place / "sd", file, "--to", "single_file") == 0
    assert convert(file, tmp_path / "again", "--to", "diffusers", "--layout", place / "sdxl") == 2
    assert "Is it a whole model of the same architecture as the layout?" in capsys.readouterr().err
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


def test_an_existing_file_is_replaced_only_where_that_is_said(place: Path, tmp_path: Path) -> None:
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
