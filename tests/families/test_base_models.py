"""Base models of every form, and everything that is none: a sentence before anything large is read."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import write_single_file
from modules.config import ConfigError, TrainConfig
from modules.families._by_name import family_class
from modules.families._find_family import check_family
from modules.training.memory.model_setup import check_available
from tests.families.diffusion_checks import REQUEST, load
from tests.families.stills import still


def cut_off(folder: Path) -> None:
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()


def without(part: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / part)


def scheduler(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "scheduler" / "scheduler_config.json").write_text(text)


def changed(part: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (file,) = (folder / part).glob("*.safetensors")
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return damage


def wider(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: torch.zeros(len(tensors[name]) + 1, *tensors[name].shape[1:])})


def sparse(folder: Path) -> Path:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(b"")
    return file


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "model_index.json").unlink(), "is not a model folder"),
        (lambda folder: (folder / "model_index.json").write_text("[]"), "is not a model folder"),
        (lambda folder: (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}'), "FluxPipeline"),
        (without("vae"), "has no vae"),
        (lambda folder: os.truncate(sparse(folder), 1 << 40), "is damaged or truncated"),
        (without("tokenizer"), "has no tokenizer"),
        (without("text_encoder"), "has no text_encoder"),
        (without("scheduler"), "has no scheduler"),
        (scheduler("{broken"), "scheduler_config.json is not JSON"),
        (scheduler("{}"), "names the class None, which is no scheduler"),
        (scheduler('{"_class_name": "Nonsense"}'), "names the class 'Nonsense', which is no scheduler of diffusers"),
        (scheduler('{"_class_name": "UNet2DConditionModel"}'), "which is no scheduler of diffusers"),
        (scheduler('{"_class_name": "DDIMScheduler", "beta_schedule": "x"}'), "scheduler_config.json cannot be used"),
        (scheduler('{"_class_name": "DDIMScheduler", "num_train_timesteps": "x"}'), "cannot be used"),
        (cut_off, "is damaged or truncated"),
        (pickled, "is a pickled file.*convert"),
        (
            changed("unet", wider("conv_in.bias")),
            r"safetensors': 'conv_in.bias' has .*\[9\], but unet/config.json .*\[8\]",
        ),
        (changed("unet", lambda t: t.pop("conv_in.bias")), "has no 'conv_in.bias', which unet/config.json requires"),
        (
            changed("unet", lambda t: t.update({"up_blocks.9.resnets.0.conv1.bias": torch.zeros(1)})),
            "has 'up_blocks.9.resnets.0.conv1.bias', a layer of a block that config.json does not",
        ),
        (changed("vae", wider("encoder.conv_in.bias")), "'encoder.conv_in.bias' has .* but vae/config.json describes"),
        (changed("vae", lambda t: t.pop("encoder.conv_in.bias")), "has no 'encoder.conv_in.bias'"),
        (changed("text_encoder", lambda t: t.pop(min(t))), "has no '.*', which text_encoder/config.json requires"),
        (
            changed("text_encoder", lambda t: wider(next(n for n in t if "fc1.bias" in n))(t)),
            "fc1.bias' has .* but text_encoder/config.json describes",
        ),
    ],
)
def test_incomplete_model_folder(
    sd_folder: Path, tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    folder = shutil.copytree(sd_folder, tmp_path / "model")
    damage(folder)
    with pytest.raises(ConfigError, match=f"^base_model: .*{sentence}"):
        load("stable_diffusion", folder)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("model.ckpt", "is a pickled file"),
        ("nothing.safetensors", "there is no 'nothing.safetensors'"),
        ("no/such/place", "there is no 'no/such/place'"),
        ("./model", "there is no './model'"),
        ("model-Q4_0.gguf", "is no model in one .safetensors file"),
        ("readme.txt", "is not a .safetensors or .gguf file"),
        ("torn.safetensors", "is not a safetensors file"),
        ("lora.safetensors", "is a LoRA"),
        ("other.safetensors", "is not a Stable Diffusion model"),
        ("xl.safetensors", "is a model of Stable Diffusion XL.*stable_diffusion_xl"),
    ],
)
def test_unusable_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    one = torch.zeros(1)
    Path("readme.txt").write_text("hello")
    Path("torn.safetensors").write_bytes(b"torn")
    Path("model-Q4_0.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    save_file({"lora_unet_x.lora_up.weight": one}, "lora.safetensors")
    save_file({"x": one}, "other.safetensors")
    save_file({"model.diffusion_model.x": one, "conditioner.embedders.1.x": torch.zeros(2)}, "xl.safetensors")
    with pytest.raises(ConfigError, match=f"base_model: .*{sentence}"):
        load("stable_diffusion", name)


def test_no_base_model_at_all() -> None:
    with pytest.raises(ConfigError, match=r"base_model is empty.*diffusers folder"):
        family_class("stable_diffusion").load(TrainConfig(family="stable_diffusion"))


def test_the_model_of_another_family(sdxl_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a StableDiffusionXLPipeline, which.* Set family to stable_diffusion_xl"):
        load("stable_diffusion", sdxl_folder)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss": "l3"}, "family_options: loss"),
        ({"min_timestep": 0.8, "max_timestep": 0.2}, "min_timestep is 0.8.*below max_timestep"),
        ({"zero_terminal_snr": True}, "zero_terminal_snr is true.*epsilon"),
        ({"zero_terminal_snr": True, "prediction_type": "epsilon"}, "zero_terminal_snr is true.*v_prediction"),
        ({"clip_skip": 7}, "clip_skip is 7; this model's text encoders allow at most 2"),
    ],
)
def test_unsuitable_options(sd_folder: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load("stable_diffusion", sd_folder, family_options=options)


def test_resolution_that_is_not_a_multiple() -> None:
    with pytest.raises(
        ConfigError, match=r"resolution is 100; stable_diffusion needs a multiple of 64, for example 128"
    ):
        check_available(TrainConfig(family="stable_diffusion", resolution=100))


def test_placeholder_token_in_vocabulary_or_with_a_long_init(sd_folder: Path) -> None:
    settings = {"method": "embedding", "embedding_token": "<c>"}
    with pytest.raises(
        ConfigError, match=r"embedding_token is 'cat', which is already a word for the tokenizer of text_encoder"
    ):
        load("stable_diffusion", sd_folder, **settings).add_placeholder_token("cat", 1, "dog")
    family = load("stable_diffusion", sd_folder, **settings)
    family.add_placeholder_token("<c>", 2, "red disc")
    assert family.prompt_warnings(["a <c>"]) == []
    family.add_placeholder_token("<d>", 2, "red blue disc")
    assert "is 3 tokens, but embedding_vectors is 2" in family.prompt_warnings([])[0]


def test_a_family_of_ones_own_trains_the_hub_models_of_the_one_it_derives_from() -> None:
    name = "black-forest-labs/FLUX.1-dev"
    config = TrainConfig(family="mine.py", base_model=name)
    check_family(config, family_class("flux").facts.pipelines)
    with pytest.raises(ConfigError, match=rf"'{name}' is FLUX\.1.*, which the family 'mine\.py' does not train"):
        check_family(config, family_class("chroma").facts.pipelines)


def test_unknown_prediction_type(sd_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd_folder, tmp_path / "model")
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "prediction_type": "sample"}))
    with pytest.raises(ConfigError, match="predicts 'sample', which is not supported"):
        load("stable_diffusion", folder)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of a computer without a connection."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_hub_name_without_a_connection(offline: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no folder 'owner/model', and as a model of the hub it is not .*HF_HUB_OFFLINE"
    ):
        load("stable_diffusion", "owner/model")


def test_a_model_that_was_downloaded_before(offline: Path, sd_folder: Path) -> None:
    repository = offline / "models--owner--model"
    shutil.copytree(sd_folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert still(load("stable_diffusion", "owner/model"), REQUEST).size == (64, 128)


@pytest.mark.parametrize("family", ["stable_diffusion", "stable_diffusion_xl"])
def test_single_file(family: str, sd_folder: Path, sdxl_folder: Path, tmp_path: Path, offline: Path) -> None:
    folder = sd_folder if family == "stable_diffusion" else sdxl_folder
    write_single_file(folder, tmp_path / "model.safetensors", torch.float32, {})
    options = {"layout": str(folder)}
    loaded = load(family, tmp_path / "model.safetensors", family_options=options)
    assert still(loaded, REQUEST).tobytes() == still(load(family, folder), REQUEST).tobytes()
    with pytest.raises(ConfigError, match=r"on the hub.*HF_HUB_OFFLINE.* family_options.layout"):
        load(family, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"family_options.layout: .* is not a model folder"):
        load(family, tmp_path / "model.safetensors", family_options={"layout": str(tmp_path)})


def test_folder_written_by_older_versions(sd_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sd_folder, tmp_path / "model")
    tokenizer = folder / "tokenizer"
    words = json.loads((tokenizer / "tokenizer.json").read_text())["model"]
    (tokenizer / "vocab.json").write_text(json.dumps(words["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in words["merges"]]
    (tokenizer / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    (tokenizer / "tokenizer.json").unlink()
    file = folder / "text_encoder" / "model.safetensors"
    weights = {f"text_model.{name.removeprefix('text_model.')}": tensor for name, tensor in load_file(file).items()}
    save_file({**weights, "text_model.embeddings.position_ids": torch.arange(77)[None]}, file, {"format": "pt"})
    (folder / "safety_checker").mkdir()
    loaded, plain = load("stable_diffusion", folder), load("stable_diffusion", sd_folder)
    assert still(loaded, REQUEST).tobytes() == still(plain, REQUEST).tobytes()


def test_loading_and_saving_log_nothing_of_the_libraries(sd_folder: Path, tmp_path: Path) -> None:
    """What reaches the loggers of diffusers and transformers stands on people's terminals."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    try:
        for logger in loggers:
            logger.addHandler(handler)
        folder = shutil.copytree(sd_folder, tmp_path / "model")
        file = folder / "scheduler" / "scheduler_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "of_another_version": 3}))
        family = load("stable_diffusion", folder, parts=[{"part": "unet"}, {"part": "text_encoder", "train": False}])
        family.export(family.model.state_dict(), tmp_path / "saved")
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert said == []
