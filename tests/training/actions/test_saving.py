"""What a run of each method leaves is read by other tools, and is what was trained."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors import safe_open
from safetensors.torch import load_file

from modules.config import TrainConfig
from modules.families._by_name import family_class
from tests.checkpoint.formats.generating import PROMPT, generate, same
from tests.checkpoint.formats.real_blocks import with_the_real_blocks
from tests.conftest import draw_images
from tests.families.tiny_pipelines import tiny_sd, tiny_sdxl
from tests.runs import Run, tiny_config, train_alone


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of discs, and the two base models."""
    folder = tmp_path_factory.mktemp("saving")
    (folder / "discs").mkdir()
    draw_images(folder / "discs", 4)
    tiny_sd(folder / "stable_diffusion")
    with_the_real_blocks(tiny_sdxl(folder / "stable_diffusion_xl"))
    return folder


def trained(place: Path, family: str, name: str, **settings: object) -> Run:
    """A run of two steps that change much."""
    given = {
        "family": family,
        "base_model": str(place / family),
        "resolution": 64,
        "max_steps": 2,
        "run_name": name,
        "learning_rate": 0.02,
        "backup_every": "1 epoch",
        **settings,
    }
    code, run = train_alone(tiny_config(place / "discs", place, **given))
    assert code == 0, run.failure(0)
    return run


def header(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        found: dict[str, str] = opened.metadata()
    return found


@pytest.mark.slow
def test_a_fine_tuned_model_is_also_one_file(place: Path) -> None:
    run = trained(
        place,
        "stable_diffusion",
        "cats",
        parts=[{"part": "unet"}, {"part": "text_encoder"}],
        save_single_file=True,
        model_author="Ada",
    )
    file = run.folder.path / "cats.safetensors"
    base = str(place / "stable_diffusion")
    read = StableDiffusionPipeline.from_single_file(str(file), config=base, local_files_only=True)
    weights = run.state.weights
    for part in ("unet", "text_encoder"):
        for name, tensor in getattr(read, part).state_dict().items():
            assert torch.equal(tensor, weights[f"{part}.{name}"]), name
    assert same(generate(read), generate(StableDiffusionPipeline.from_pretrained(run.folder.model_dir)))
    again = TrainConfig(family="stable_diffusion", base_model=str(file), family_options={"layout": base})
    begun = family_class("stable_diffusion").load(again).model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in begun.items()), "a run continues from the file"
    said = header(file)
    assert (said["modelspec.architecture"], said["modelspec.author"]) == ("stable-diffusion-v1", "Ada")
    assert said["modelspec.title"] == "cats"
    assert "discs" not in json.dumps(said)
    note = json.loads((run.folder.model_dir / "tandem.json").read_text())
    assert note["metadata"]["modelspec.author"] == "Ada"


@pytest.mark.slow
def test_a_lora_is_written_for_both_kinds_of_tools(place: Path) -> None:
    parts = [{"part": part} for part in ("unet", "text_encoder", "text_encoder_2")]
    run = trained(
        place,
        "stable_diffusion_xl",
        "lora",
        method="lora",
        lora_rank=4,
        lora_alpha=8,
        lora_targets="all",
        parts=parts,
        metadata_dataset=True,
    )
    weights = run.state.weights
    images = []
    for name in ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors"):
        reader = StableDiffusionXLPipeline.from_pretrained(place / "stable_diffusion_xl")
        plain = generate(reader)
        reader.load_lora_weights(str(run.folder.model_dir / name))
        found = adapters_of(reader)
        expected = {key: tensor for key, tensor in weights.items() if ".lora_" in key}
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        images.append(generate(reader))
        assert not same(images[-1], plain)
    assert same(*images)
    said = header(run.folder.model_dir / "lora_kohya.safetensors")
    assert any(
        "lora_unet_input_blocks_4_1_" in key for key in load_file(run.folder.model_dir / "lora_kohya.safetensors")
    )
    assert said["modelspec.implementation"] == "https://github.com/Stability-AI/generative-models"
    assert header(run.folder.model_dir / "pytorch_lora_weights.safetensors")["modelspec.implementation"] == "diffusers"
    assert all(said[f"modelspec.{key}"] for key in ("sai_model_spec", "title", "resolution", "date"))
    assert said["modelspec.architecture"] == "stable-diffusion-xl-v1-base/lora"
    assert said["ss_network_dim"] == "4"
    position = run.state.position  # train_network.py: ceil(max_train_steps / steps of an epoch)
    steps_per_epoch = math.ceil(position.epoch_size / position.global_batch_size)
    assert said["ss_num_epochs"] == str(math.ceil(2 / steps_per_epoch))
    assert "discs" in json.loads(said["ss_tag_frequency"])


def adapters_of(pipeline: Any) -> dict[str, torch.Tensor]:
    """All adapters of a pipeline, under the names that they have in a backup."""
    return {
        f"{part}.{name}".replace(".default_0.", ".default."): weight.detach()
        for part in ("unet", "text_encoder", "text_encoder_2")
        for name, weight in getattr(pipeline, part).named_parameters()
        if ".lora_" in name
    }


@pytest.mark.slow
def test_an_embedding_is_loaded_by_diffusers(place: Path) -> None:
    run = trained(place, "stable_diffusion", "word", method="embedding", embedding_token="<disc>", embedding_vectors=2)
    (file,) = run.folder.model_dir.glob("*.safetensors")
    reader = StableDiffusionPipeline.from_pretrained(place / "stable_diffusion")
    plain = generate(reader, f"{PROMPT} disc")
    reader.load_textual_inversion(str(file), token="<disc>")
    table = reader.text_encoder.get_input_embeddings().weight
    assert torch.equal(table[-2:], load_file(file)["emb_params"])
    assert not same(generate(reader, f"{PROMPT} <disc>"), plain)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_all_files_have_the_number_format_that_was_asked_for(place: Path, dtype: str, kind: torch.dtype) -> None:
    run = trained(place, "stable_diffusion", dtype, save_dtype=dtype, save_single_file=True)
    files = [run.folder.path / f"{dtype}.safetensors", *run.folder.model_dir.rglob("*.safetensors")]
    assert len(files) == 4
    for file in files:
        assert {tensor.dtype for tensor in load_file(file).values() if tensor.is_floating_point()} == {kind}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"save_single_file": True}, "no single-file layout"),
        ({"method": "lora", "lora_layouts": "kohya"}, "kohya's layout has no names"),
    ],
)
def test_a_family_without_such_a_file_refuses_before_it_starts(
    settings: dict[str, object], words: str, place: Path, tmp_path: Path
) -> None:
    code, run = train_alone(tiny_config(place / "discs", tmp_path, family="pixel_diffusion", **settings))
    assert code == 2
    assert words in run.failure(0)
