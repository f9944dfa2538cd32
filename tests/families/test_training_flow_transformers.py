"""Real runs of a tiny Z-Image, Lumina 2 and FLUX.1: alone, by two ranks, interrupted, with samples, saved models."""

from __future__ import annotations

import pytest
from PIL import Image
from safetensors.torch import load_file

from modules.config import TrainConfig
from modules.training.parity import loss_difference, weight_difference
from tests.conftest import draw_images
from tests.families.tiny_flow_pipelines import TINY
from tests.pair_jobs import TIMEOUTS
from tests.runs import Job, Run, group_settings, same_state, tiny_config, train_alone, train_group

FAMILY = "z_image"
STEPS = 4
CAPTIONS = ("a red disc", "a blue circle, number 2, on a wooden table", "cat")
LORA: dict[str, object] = {"method": "lora", "lora_rank": 2, "lora_alpha": 2.0, "caption_dropout": 0.3}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainConfig]:
    """In double precision, with captions of different lengths."""
    place = tmp_path_factory.mktemp("training")
    (place / "images").mkdir()
    images = draw_images(place / "images", 7)
    for number, file in enumerate(sorted(images.glob("*.txt"))):
        file.write_text(CAPTIONS[number % 3])
    bases = {family: str(TINY[family](place / family)) for family in (FAMILY, "lumina2", "flux")}
    common = {"precision": "fp64", "max_steps": STEPS, "batch_size": 2, "global_batch_size": 4, "resolution": 64}
    return {
        name: tiny_config(
            images, place, family=family, base_model=bases[family], run_name=f"one-{name}", **{**common, **settings}
        )
        for name, family, settings in (
            ("lora", FAMILY, LORA),
            ("fine_tune", FAMILY, {"save_single_file": True}),
            ("lumina2", "lumina2", LORA),  # a mask, and another encoding of empty captions
            ("flux", "flux", {}),  # rotary embeddings, whose gradients diffusers computes in fp32
        )
    }


@pytest.fixture(scope="module")
def alone(configs: dict[str, TrainConfig]) -> dict[str, Run]:
    samples = {"samples": [{"prompt": "a red disc", "width": 64, "height": 64, "steps": 2}], "sample_every": "2 steps"}
    done = {name: train_alone(TrainConfig(**(c.model_dump() | samples))) for name, c in configs.items()}
    assert [code for code, _ in done.values()] == [0] * len(done)
    return {name: run for name, (_, run) in done.items()}


@pytest.mark.slow
def test_two_ranks_train_as_one_does(configs: dict[str, TrainConfig], alone: dict[str, Run]) -> None:
    settings = {**group_settings(2), **TIMEOUTS}
    modes = [(name, mode) for name in configs for mode in ("distributed", "fully_sharded")]
    modes.remove(("flux", "fully_sharded"))  # spares seconds; the other two show that sharding changes nothing
    jobs = {
        (name, mode): Job(
            TrainConfig(
                **(configs[name].model_dump() | settings | {"training_mode": mode, "run_name": f"{mode}-{name}"})
            )
        )
        for name, mode in modes
    }
    runs = train_group(2, {" ".join(job): named for job, named in jobs.items()})
    for name, mode in jobs:
        pair = runs[f"{name} {mode}"]
        assert len(alone[name].losses) == STEPS
        assert loss_difference(alone[name].losses, pair.losses) <= 1e-9
        assert weight_difference(alone[name].state, pair.state) <= 1e-9


def test_a_resumed_run_is_the_same_to_the_bit(configs: dict[str, TrainConfig], alone: dict[str, Run]) -> None:
    half = configs["lora"].model_copy(update={"run_name": "half", "max_steps": STEPS // 2})
    assert train_alone(half)[0] == 0
    code, resumed = train_alone(half.model_copy(update={"max_steps": STEPS}), "latest")
    assert code == 0
    assert same_state(resumed.state, alone["lora"].state)


def test_runs_leave_samples_a_lora_and_a_model(alone: dict[str, Run]) -> None:
    for run in alone.values():
        with Image.open(run.folder.samples_dir / "step-000004-00.png") as sample:
            assert sample.size == (64, 64)
    names = set(load_file(alone["lora"].folder.model_dir / "pytorch_lora_weights.safetensors"))
    assert names
    assert all(name.startswith("transformer.") for name in names)
    assert (alone["fine_tune"].folder.model_dir / "text_encoder" / "config.json").is_file()
    assert "layers.0.attention.qkv.weight" in load_file(alone["fine_tune"].folder.path / "one-fine_tune.safetensors")


def test_bf16_trains_with_recomputed_activations(configs: dict[str, TrainConfig]) -> None:
    changes = {"precision": "bf16", "run_name": "bf16", "max_steps": 2, "gradient_checkpointing": True}
    code, run = train_alone(TrainConfig(**(configs["lora"].model_dump() | changes)))
    assert code == 0
    assert all(loss == loss for loss in run.losses)
