"""Damaged model folders through the commands: exit code 2, one sentence that names the file, nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from scripts import annotate, convert, sample
from tests.annotators.tiny_models import tiny_blip
from tests.end_to_end.test_bad_input import run_train
from tests.families.tiny_pipelines import tiny_sd
from tests.runs import tiny_config, train_command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model and a captioner whose tokenizers no library reads."""
    folder = tmp_path_factory.mktemp("damaged")
    for tokenizer in (tiny_sd(folder / "sd") / "tokenizer", tiny_blip(folder / "blip")):
        content = json.loads((tokenizer / "tokenizer.json").read_text())
        content["auto_map"] = {}
        (tokenizer / "tokenizer.json").write_text(json.dumps(content))
    Image.new("RGB", (40, 30), "red").save(folder / "a.png")
    return folder


def is_refused(code: int, words: str, file: str) -> bool:
    return code == 2 and file in words and "Traceback" not in words and len(words.strip().splitlines()) == 1


@pytest.mark.parametrize("dry_run", [True, False])
def test_training(
    dry_run: bool, damaged: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(
        images, tmp_path, family="stable_diffusion", base_model=str(damaged / "sd"), family_options={}, resolution=64,
        samples=[], method="lora",
    )  # fmt: skip
    argv = train_command(config, tmp_path / "c.json")[2:]
    code, words = run_train(capsys, *argv, *(["--dry_run"] if dry_run else []))
    assert code == 2
    assert "cannot be loaded (tokenizer.json)" in words
    assert "Traceback" not in words


def test_captions(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "proposals"
    code = annotate.main(["caption", str(damaged), "--model", str(damaged / "blip"), "--out", str(out)])
    assert is_refused(code, capsys.readouterr().err.splitlines()[-1], "(tokenizer.json)")
    assert not out.exists() or not list(out.iterdir())


def test_samples(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = sample.main(["--model", str(damaged / "sd"), "--prompt", "a disc", "--out", str(tmp_path / "out")])
    assert is_refused(code, capsys.readouterr().err, "(tokenizer.json)")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("unet/config.json", '{"in_channels": {}}'),
        ("vae/config.json", "[" * 5000),
        ("model_index.json", ""),
        ("text_encoder/model.safetensors", "\0" * 64),
    ],
)
def test_conversions(
    file: str, content: str, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(damaged / "sd", tmp_path / "model")
    (model / file).write_text(content)
    code = convert.main([str(model), str(tmp_path / "out.safetensors"), "--to", "single_file"])
    assert is_refused(code, capsys.readouterr().err, file.split("/")[-1])
    assert not (tmp_path / "out.safetensors").exists()
