"""The small files of a base model: what anybody may have written in them, before a library opens them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.checkpoint.formats.diffusers_folder import read_diffusers_folder
from modules.config import ConfigError
from modules.diffusion.base_model_files import check_folder, check_layout, read_shapes
from modules.families._find_family import find_family

PIPELINE = "StableDiffusionPipeline"
INDEX = "unet/diffusion_pytorch_model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of one weight."""
    for name in ("unet", "scheduler"):
        (tmp_path / name).mkdir()
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": PIPELINE, "unet": ["diffusers", "X"]}))
    (tmp_path / "unet/config.json").write_text("{}")
    (tmp_path / "scheduler/scheduler_config.json").write_text("{}")
    save_file({"weight": torch.ones(2)}, tmp_path / "unet/diffusion_pytorch_model.safetensors")
    return tmp_path


def check(folder: Path) -> None:
    """Every reader of such a folder; the first fault counts."""
    find_family(str(folder))
    read_diffusers_folder(folder)
    check_folder(folder, {PIPELINE}, ("unet", "scheduler"))


def shards(**names: object) -> str:
    return json.dumps({"weight_map": names})


def steps(part: str, **step: object) -> str:
    """A tokenizer with ten steps of a kind."""
    return json.dumps({part: {"type": "Sequence", f"{part}s": [step] * 10}})


def test_a_complete_folder_is_accepted(folder: Path) -> None:
    (folder / INDEX).write_text(shards(weight="diffusion_pytorch_model.safetensors"))
    (folder / "unet/diffusion_pytorch_model.bin.index.json").write_text(shards(weight="x.bin"))  # read by nothing
    check(folder)
    assert find_family(str(folder)) == "stable_diffusion"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model_index.json", '{"_class_name": ["a", "b"]}'),
        ("model_index.json", '{"_class_name": "StableDiffusionPipeline", "unet": 3, "vae": []}x'),
        ("model_index.json", "[" * 100_000),
        ("unet/config.json", "[" * 100_000),
        ("unet/config.json", "[]"),
        ("unet/config.json", f'{{"a": {"9" * 5000}}}'),
        ("scheduler/scheduler_config.json", "[" * 100_000),
        ("scheduler/scheduler_config.json", "3"),
        ("scheduler/tokenizer.json", steps("normalizer", type="Replace", pattern={"String": "a"}, content="aa")),
        ("scheduler/tokenizer.json", steps("decoder", type="Replace", pattern={"Regex": ""}, content="a")),
        ("scheduler/tokenizer.json", steps("pretokenizer", type="ByteLevel").replace("pre", "pre_", 1)),
        (
            "scheduler/tokenizer.4.0.0.json",
            json.dumps({"post_processor": {"single": [{}] * 20, "special_tokens": {"a": {"ids": [1] * 100}}}}),
        ),
        ("scheduler/tokenizer.json", '{"padding": {"strategy": {"Fixed": 1000000000}}}'),
        ("scheduler/tokenizer_config.json", '{"pad_to_multiple_of": 1000000000}'),
        ("scheduler/preprocessor_config.json", '{"image_processor": {"image_seq_length": 1000000000}}'),
        ("unet/generation_config.json", '{"num_beams": 100000}'),
        (INDEX, "[" * 100_000),
        (INDEX, '{"weight_map": 3}'),
        (INDEX, "{}"),
        (INDEX, shards(weight=["x.safetensors"])),
        (INDEX, shards(weight="weights.bin")),
        (INDEX, shards(weight="../../other.safetensors")),
        (INDEX, shards(weight="/etc/other.safetensors")),
    ],
)
def test_what_no_library_writes_is_a_sentence(file: str, content: str, folder: Path) -> None:
    (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=rf"{Path(file).name}|{PIPELINE}"):
        check(folder)
    if file != "model_index.json":
        with pytest.raises(ConfigError, match=Path(file).name):
            check_layout(folder, {PIPELINE}, ("scheduler",))


def test_a_component_that_is_an_empty_list_is_left_out(folder: Path) -> None:
    (folder / "model_index.json").write_text(json.dumps({"_class_name": PIPELINE, "vae": []}))
    assert read_diffusers_folder(folder).components == {}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("file", ["unet/config.json", "scheduler/scheduler_config.json", INDEX, "model_index.json"])
def test_a_named_pipe_is_refused_without_waiting_for_it(file: str, folder: Path) -> None:
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(ConfigError):
        check_folder(folder, {PIPELINE}, ("unet", "scheduler"))
    if file.endswith("/config.json") or file == "model_index.json":
        with pytest.raises(ConfigError):
            read_diffusers_folder(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_weights_that_are_a_named_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match="named pipe"):
        read_shapes([tmp_path / "x.safetensors"])
