"""scripts/convert.py --extract and --resize: LoRAs by singular values."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import read_lora, write_lora
from scripts.convert import main
from tests.checkpoint.formats.adapted import ALL, SD, adapted, weights_in


def convert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def merged(sd: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A LoRA, and the model that it was merged into."""
    place = tmp_path_factory.mktemp("extraction")
    lora = place / "cats.safetensors"
    weights = weights_in(adapted(sd, StableDiffusionPipeline, SD, ALL, dora=False), SD)
    write_lora(lora, weights, "kohya", SD, {"ss_network_dim": "2", "ss_output_name": "cats"}, torch.float32)
    assert convert(sd, place / "model", "--merge", lora) == 0
    return lora, place / "model"


@pytest.mark.slow
def test_an_extracted_lora_is_the_one_that_was_merged(sd: Path, merged: tuple[Path, Path], tmp_path: Path) -> None:
    lora, model = merged
    assert convert(sd, tmp_path / "own.safetensors", "--extract", model, "--rank", 8) == 0
    wanted = {(one.submodule, one.module): one.delta() for one in read_lora(lora, SD)}
    found = {(one.submodule, one.module): one.delta() for one in read_lora(tmp_path / "own.safetensors", SD)}
    assert found.keys() == wanted.keys()
    for place, delta in wanted.items():
        assert (found[place] - delta).abs().max() <= 1e-4 * delta.abs().max() + 1e-6, place
    assert convert(model, tmp_path / "none.safetensors", "--extract", model, "--rank", 8) == 2


def test_what_no_lora_holds_is_counted(sd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = tmp_path / "tuned"
    shutil.copytree(sd, tuned)
    (file,) = (tuned / "unet").glob("*.safetensors")
    state = load_file(file)
    changed = ("conv_in.weight", "conv_in.bias", "conv_norm_out.weight")
    save_file({n: t + 0.1 if n in changed else t for n, t in state.items()}, file, {"format": "pt"})
    assert convert(sd, tmp_path / "own.safetensors", "--extract", tuned, "--rank", 1) == 0
    assert "2 weights of norms, biases and embeddings differ as well" in capsys.readouterr().err
    (one,) = read_lora(tmp_path / "own.safetensors", SD)
    assert (one.module, one.rank) == ("conv_in", 1)
    torch.testing.assert_close(one.delta(), torch.full_like(one.delta(), 0.1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", ["kohya", "diffusers"])
def test_a_resized_lora_is_the_nearest_of_its_rank(
    layout: str, merged: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source.safetensors", tmp_path / "out.safetensors"
    assert convert(merged[0], source, "--to", layout) == 0
    assert convert(source, out, "--resize", "--rank", 1) == 0
    assert "% of the LoRA's norm is kept at rank 1." in capsys.readouterr().err
    before, after = ({(one.submodule, one.module): one for one in read_lora(file, SD)} for file in (source, out))
    assert before.keys() == after.keys()
    for place, one in before.items():
        u, s, v = torch.linalg.svd(one.delta())
        torch.testing.assert_close(after[place].delta(), s[0] * torch.outer(u[:, 0], v[0]), rtol=1e-4, atol=1e-5)
        assert after[place].down.shape == (1, *one.down.shape[1:])


def test_the_rank_is_needed(
    sd: Path, merged: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--resize"], ["--resize", "--rank", "0"], ["--to", "kohya", "--rank", "4"]):
        assert convert(merged[0], tmp_path / "x.safetensors", *arguments) == 2
        assert "--extract and --resize." in capsys.readouterr().err
    assert convert(merged[0], tmp_path / "x.safetensors", "--extract", sd, "--rank", "4") == 2
    assert "Nothing was written" in capsys.readouterr().err
