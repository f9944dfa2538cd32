"""Real runs of the tiny Stable Diffusion families: alone, interrupted, with samples and a saved model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.checkpoint import read_model_config
from modules.config import TrainConfig
from modules.families._family import SampleRequest
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import load_family, prepare_model
from modules.training.studies.parity import weight_difference
from tests.conftest import draw_images
from tests.families.diffusion_checks import load
from tests.families.stills import still
from tests.runs import Run, same_state, tiny_config, train_alone

STEPS = 4
BOTH = [{"part": "unet"}, {"part": "text_encoder", "learning_rate": 0.005}]
PARITY: dict[str, object] = {"precision": "fp64", "max_steps": STEPS, "batch_size": 2, "global_batch_size": 4}
JOBS: dict[str, dict[str, object]] = {
    "stable_diffusion": {"parts": BOTH, "caption_dropout": 0.3},
    "stable_diffusion_xl": {
        "family_options": {"loss_weighting": "min_snr", "offset_noise": 0.05},
        "cache_precision": "fp16",
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def configs(place: Path, sd_folder: Path, sdxl_folder: Path) -> dict[str, TrainConfig]:
    (place / "images").mkdir()
    images = draw_images(place / "images", 7)
    concepts = [{"path": str(images), "tag_shuffle": True, "horizontal_flip": True}]
    bases = {"stable_diffusion": sd_folder, "stable_diffusion_xl": sdxl_folder}
    more: dict[str, dict[str, object]] = {"stable_diffusion": {"concepts": concepts}, "stable_diffusion_xl": {}}
    return {
        name: tiny_config(
            images,
            place,
            family=name,
            base_model=str(bases[name]),
            resolution=64,
            run_name=f"one-{name}",
            **{**PARITY, **settings, **more[name]},
        )
        for name, settings in JOBS.items()
    }


@pytest.fixture(scope="module")
def alone(configs: dict[str, TrainConfig]) -> dict[str, Run]:
    samples = {"samples": [{"prompt": "a red disc", "width": 64, "height": 64, "steps": 2}], "sample_every": "2 steps"}
    done = {name: train_alone(TrainConfig(**(c.model_dump() | samples))) for name, c in configs.items()}
    assert [code for code, _ in done.values()] == [0] * len(done)
    return {name: run for name, (_, run) in done.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(JOBS))
def test_a_resumed_run_is_the_same_to_the_bit(
    name: str, configs: dict[str, TrainConfig], alone: dict[str, Run]
) -> None:
    half = configs[name].model_copy(update={"run_name": f"half-{name}", "max_steps": STEPS // 2})
    assert train_alone(half)[0] == 0
    code, resumed = train_alone(half.model_copy(update={"max_steps": STEPS}), "latest")
    assert code == 0
    assert same_state(resumed.state, alone[name].state)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(JOBS))
def test_a_run_leaves_samples_and_a_model(name: str, alone: dict[str, Run], configs: dict[str, TrainConfig]) -> None:
    folder = alone[name].folder
    with Image.open(folder.samples_dir / "step-000004-00.png") as sample:
        assert sample.size == (64, 64)
        assert "a red disc" in json.dumps(sample.info)
        assert json.loads(sample.info["tandem"])["sampler"].endswith("Scheduler")
    config = read_model_config(folder.model_dir)
    saved = load(name, folder.model_dir, family_options=config.family_options)
    request = SampleRequest("a red disc", "", 64, 64, steps=2, guidance_scale=4.0, seed=1)
    assert still(saved, request).size == (64, 64)
    before = load_file(Path(str(configs[name].base_model)) / "unet" / "diffusion_pytorch_model.safetensors")
    after = load_file(folder.model_dir / "unet" / "diffusion_pytorch_model.safetensors")
    assert all(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.slow
def test_recomputing_in_all_parts_changes_nothing(configs: dict[str, TrainConfig], alone: dict[str, Run]) -> None:
    config = configs["stable_diffusion"].model_copy(update={"run_name": "recomputed", "gradient_checkpointing": True})
    code, run = train_alone(config)
    assert code == 0
    assert weight_difference(run.state, alone["stable_diffusion"].state) <= 1e-9
    family = load_family(config)
    prepare_model(family, config, Precision("fp64", torch.device("cpu")))
    for part in ("unet", "text_encoder"):
        modules = list(family.model.get_submodule(part).modules())
        assert any(getattr(module, "gradient_checkpointing", False) for module in modules), part


@pytest.mark.slow
def test_bf16_trains_with_encodings_kept_as_small(configs: dict[str, TrainConfig], place: Path) -> None:
    changes = {"precision": "bf16", "run_name": "bf16", "max_steps": 2, "gradient_checkpointing": True}
    code, run = train_alone(TrainConfig(**(configs["stable_diffusion_xl"].model_dump() | changes)))
    assert code == 0
    assert all(loss == loss for loss in run.losses)
