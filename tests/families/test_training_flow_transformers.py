"""Real runs of a tiny Z-Image: interrupted, with samples and saved models. Several ranks: test_three_ranks.py."""

from __future__ import annotations

import pytest
from PIL import Image
from safetensors.torch import load_file

from modules.config import TrainConfig
from tests.conftest import draw_images
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import Run, same_state, tiny_config, train_alone

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
    base = str(TINY[FAMILY](place / FAMILY))
    common = {"precision": "fp64", "max_steps": STEPS, "batch_size": 2, "global_batch_size": 4, "resolution": 64}
    return {
        name: tiny_config(
            images, place, family=FAMILY, base_model=base, run_name=f"one-{name}", **{**common, **settings}
        )
        for name, settings in (("lora", LORA), ("fine_tune", {"save_single_file": True}))
    }


@pytest.fixture(scope="module")
def alone(configs: dict[str, TrainConfig]) -> dict[str, Run]:
    samples = {"samples": [{"prompt": "a red disc", "width": 64, "height": 64, "steps": 2}], "sample_every": "2 steps"}
    done = {name: train_alone(TrainConfig(**(c.model_dump() | samples))) for name, c in configs.items()}
    assert [code for code, _ in done.values()] == [0] * len(done)
    return {name: run for name, (_, run) in done.items()}


@pytest.mark.slow
def test_a_resumed_run_is_the_same_to_the_bit(configs: dict[str, TrainConfig], alone: dict[str, Run]) -> None:
    half = configs["lora"].model_copy(update={"run_name": "half", "max_steps": STEPS // 2})
    assert train_alone(half)[0] == 0
    code, resumed = train_alone(half.model_copy(update={"max_steps": STEPS}), "latest")
    assert code == 0
    assert same_state(resumed.state, alone["lora"].state)


@pytest.mark.slow
def test_runs_leave_samples_a_lora_and_a_model(alone: dict[str, Run]) -> None:
    for run in alone.values():
        with Image.open(run.folder.samples_dir / "step-000004-00.png") as sample:
            assert sample.size == (64, 64)
    names = set(load_file(alone["lora"].folder.model_dir / "pytorch_lora_weights.safetensors"))
    assert names
    assert all(name.startswith("transformer.") for name in names)
    assert (alone["fine_tune"].folder.model_dir / "text_encoder" / "config.json").is_file()
    assert "layers.0.attention.qkv.weight" in load_file(alone["fine_tune"].folder.path / "one-fine_tune.safetensors")


@pytest.mark.slow
def test_bf16_trains_with_recomputed_activations(configs: dict[str, TrainConfig]) -> None:
    changes = {"precision": "bf16", "run_name": "bf16", "max_steps": 2, "gradient_checkpointing": True}
    code, run = train_alone(TrainConfig(**(configs["lora"].model_dump() | changes)))
    assert code == 0
    assert all(loss == loss for loss in run.losses)
