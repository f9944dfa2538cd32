"""Base models in fp16 and bf16 files: weights are those of a load in fp32 that is cast afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from modules.checkpoint.formats import write_single_file
from modules.config import TrainConfig
from modules.families._by_name import family_class
from modules.families._family import Family
from modules.families._latent_diffusion import LatentDiffusion
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import load_family, prepare_model
from modules.training.memory.move_model import move_model
from modules.training.methods.method import prepare
from modules.training.state.plan import InitialModel
from modules.training.state.resume import check_initial_model
from scripts import sample
from scripts.sample_events import SampleEvents
from scripts.sample_images import move_to
from scripts.sample_lora import merged_dtype
from tests.families.tiny_flow_pipelines import TINY

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LORA: dict[str, Any] = {"method": "lora", "lora_rank": 2, "lora_targets": "all", "precision": "bf16"}
DORA: dict[str, Any] = {**LORA, "lora_targets": "attention_mlp", "lora_weight_decompose": True}
FROZEN = [{"part": "unet", "weights": "bf16"}, {"part": "text_encoder", "train": False, "weights": "fp16"}]
CASES: dict[str, dict[str, Any]] = {
    "fine-tune": {},
    "fine-tune of both": {"parts": [{"part": "unet"}, {"part": "text_encoder"}], "channels_last": True},
    "lora": LORA,
    "lora, frozen in bf16": {**LORA, "parts": FROZEN},
    "lora, frozen in fp16": {**LORA, "precision": "fp16", "parts": [{"part": "unet", "weights": "fp16"}]},
    "dora": DORA,
    "dora, frozen in bf16": {**DORA, "parts": FROZEN},
    "embedding": {"method": "embedding", "embedding_token": "<c>", "embedding_init": "cat"},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, sd_folder: Path, sdxl_folder: Path) -> dict[str, Path]:
    """SDXL in fp16, and Stable Diffusion in bf16 and as a single file in fp16."""
    place = tmp_path_factory.mktemp("half")
    StableDiffusionXLPipeline.from_pretrained(sdxl_folder, dtype=torch.float16).save_pretrained(place / "xl")
    StableDiffusionPipeline.from_pretrained(sd_folder, dtype=torch.bfloat16).save_pretrained(place / "sd")
    write_single_file(sdxl_folder, place / "xl.safetensors", torch.float16, {})
    return {"fp16 folder": place / "xl", "bf16 folder": place / "sd", "fp16 file": place / "xl.safetensors"}


def config_of(base: Path, **settings: Any) -> TrainConfig:
    family = "stable_diffusion" if base.name == "sd" else "stable_diffusion_xl"
    options = {"layout": str(base.with_suffix(""))} if base.is_file() else {}
    return TrainConfig.model_validate(
        {"family": family, "base_model": str(base), "family_options": options, **settings}
    )


def cast_after_load(config: TrainConfig) -> Family:
    """All in fp32, then the method, then frozen layers in their format: every step over the whole model."""
    family = family_class(config.family).load(config)
    assert {weight.dtype for weight in family.model.parameters()} == {torch.float32}
    prepare(family, config)
    family.model.float()
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16}
    for part in config.parts:
        if part.weights in formats and hasattr(family.model, part.part):
            for layer in family.model.get_submodule(part.part).modules():
                is_layer = isinstance(layer, nn.Linear | nn.Conv2d)
                if is_layer and not any(weight.requires_grad for weight in layer.parameters()):
                    layer.to(formats[part.weights])
    return family


def same(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert state.keys() == expected.keys()
    different = [n for n, t in state.items() if t.dtype != expected[n].dtype or not torch.equal(t, expected[n])]
    assert different == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "case"),
    [
        *(("fp16 folder", case) for case in CASES),
        ("bf16 folder", "fine-tune"),
        ("bf16 folder", "dora, frozen in bf16"),
        ("fp16 file", "lora, frozen in fp16"),
        ("fp16 file", "embedding"),
    ],
)
def test_weights_are_those_of_a_cast_after_loading(base: str, case: str, bases: dict[str, Path]) -> None:
    config = config_of(bases[base], **CASES[case])
    expected, family = cast_after_load(config), load_family(config)
    assert isinstance(family, LatentDiffusion)
    file_dtype = torch.bfloat16 if base.startswith("bf16") else torch.float16
    assert {weight.dtype for weight in family.model.parameters()} == {file_dtype}, "as they are in the file"
    prepare_model(family, config, Precision(config.precision, CPU))
    same(family.model.state_dict(), expected.model.state_dict())
    trained = [name for name, weight in expected.model.named_parameters() if weight.requires_grad]
    assert [name for name, weight in family.model.named_parameters() if weight.requires_grad] == trained
    for name, encoder in family.encoders.items():
        same(encoder.state_dict(), expected.encoders[name].state_dict())


@pytest.mark.slow
def test_frozen_encoders_are_cast_to_their_format(bases: dict[str, Path], sdxl_folder: Path) -> None:
    family = load_family(config_of(bases["fp16 folder"], **CASES["lora, frozen in bf16"]))
    loaded = StableDiffusionXLPipeline.from_pretrained(bases["fp16 folder"], dtype=torch.float32)
    same(family.encoders["vae"].state_dict(), loaded.vae.state_dict())
    same(family.encoders["text_encoder"].state_dict(), loaded.text_encoder.half().state_dict())
    same(family.encoders["text_encoder_2"].state_dict(), loaded.text_encoder_2.state_dict())


@pytest.mark.slow
def test_for_a_gpu_weights_stay_in_the_file_until_they_are_moved(bases: dict[str, Path]) -> None:
    config = config_of(bases["fp16 folder"], **CASES["dora, frozen in bf16"])
    expected, family = cast_after_load(config), load_family(config)
    prepare_model(family, config, Precision("bf16", GPU))
    base_weights = {w.dtype for n, w in family.model.named_parameters() if ".lora_" not in n}
    assert base_weights == {torch.float16}
    move_model(family, config, CPU)
    same(family.model.state_dict(), expected.model.state_dict())


def test_a_transformer_in_two_formats_stays_as_it_is_in_its_file(tmp_path: Path) -> None:
    """Such as published ones whose norms are in fp32."""
    folder = TINY["z_image"](tmp_path / "z_image")
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    mixed = {name: one if "norm" in name else one.bfloat16() for name, one in load_file(file).items()}
    save_file(mixed, file, {"format": "pt"})
    settings = {"family": "z_image", "base_model": str(folder), "method": "lora", "precision": "bf16"}
    config = TrainConfig.model_validate(settings)
    family = load_family(config)
    same({name.removeprefix("transformer."): one for name, one in family.model.state_dict().items()}, mixed)
    expected = family_class("z_image").load(config)  # in fp32
    prepare(expected, config)
    prepare_model(family, config, Precision("bf16", CPU))
    move_model(expected, config, CPU)
    same(family.model.state_dict(), expected.model.state_dict())


@pytest.mark.parametrize("count", [1, 2])
def test_a_sample_loads_the_model_in_the_format_of_its_file(count: int, tmp_path: Path) -> None:
    """scripts/sample.py: to the bits of a load in fp32 that LoRAs are merged into before it is cast."""
    folder = TINY["z_image"](tmp_path / "z_image")
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file({name: one.bfloat16() for name, one in load_file(file).items()}, file, {"format": "pt"})
    lora = tmp_path / "cats.safetensors"
    matrices = {"lora_A": torch.randn(2, 16), "lora_B": torch.randn(16, 2)}
    names = ("layers.0.attention.to_q", "noise_refiner.0.attention.to_k")
    save_file({f"transformer.{name}.{side}.weight": m.clone() for name in names for side, m in matrices.items()}, lora)
    given = ["--model", str(folder), *(["--lora", str(lora)] * count), "--precision", "bf16", "--out", str(tmp_path)]
    options = sample.parser().parse_args([*given, "--prompt", "a red disc"])
    loaded = sample.load(options, SampleEvents(None), "cpu")
    assert {weight.dtype for weight in loaded.family.model.parameters()} == {torch.bfloat16}
    dtype = merged_dtype(loaded.family, loaded.config, count)
    assert dtype == (torch.bfloat16 if count == 1 else torch.float32)
    expected = family_class("z_image").load(loaded.config)
    for one in loaded.loras:
        one.merge_into(loaded.family, dtype)
        one.merge_into(expected, torch.float32)
    for family in (loaded.family, expected):
        move_to(CPU, family, loaded.config)
    same(loaded.family.model.state_dict(), expected.model.state_dict())


@pytest.mark.slow
def test_backups_of_runs_that_loaded_in_fp32_find_their_base_model(bases: dict[str, Path]) -> None:
    config = config_of(bases["fp16 folder"], **LORA)
    before = check_initial_model(family_class(config.family).load(config), config, InitialModel(None, {}))
    assert check_initial_model(load_family(config), config, before) == before
    assert before.digests["unet"].startswith("float32:")
    assert load_family(config).fingerprint() == family_class(config.family).load(config).fingerprint()
