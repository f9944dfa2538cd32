"""Four ranks train Stable Diffusion as one does: both families, every method, a short last step included."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.training.parity import loss_difference, weight_difference
from tests.conftest import draw_images
from tests.pair_jobs import TIMEOUTS
from tests.runs import Job, group_settings, tiny_config, train_alone, train_group

METHODS: dict[str, dict[str, object]] = {
    "full": {"caption_dropout": 0.2},
    "lora": {"method": "lora", "lora_rank": 2, "lora_targets": "attention_mlp", "lora_dropout": 0.2},
    "embedding": {"method": "embedding", "embedding_token": "<c>", "embedding_init": "cat"},
}


@pytest.mark.slow
def test_four_ranks_train_as_one_does(sd_folder: Path, sdxl_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    images = draw_images(tmp_path / "images", 7)
    for file in images.glob("*.txt"):
        file.write_text("a <c> disc")
    bases = {"stable_diffusion": sd_folder, "stable_diffusion_xl": sdxl_folder}
    configs = {
        f"{family} {method}": tiny_config(
            images,
            tmp_path,
            family=family,
            base_model=str(base),
            resolution=64,
            precision="fp64",
            max_steps=2,  # of four samples and of the three that are left: the fourth rank has none
            batch_size=2,
            global_batch_size=4,
            run_name=f"one-{family}-{method}",
            **settings,
        )
        for family, base in bases.items()
        for method, settings in METHODS.items()
    }
    changes = {**group_settings(4), **TIMEOUTS, "batch_size": 1}
    jobs = {
        name: Job(TrainConfig(**(config.model_dump() | changes | {"run_name": f"four-{config.run_name}"})))
        for name, config in configs.items()
    }
    alone = {name: train_alone(config) for name, config in configs.items()}
    four = train_group(4, jobs)
    for name, (code, run) in alone.items():
        assert code == 0, run.failure(0)
        assert len(run.losses) == 2
        assert loss_difference(run.losses, four[name].losses) <= 1e-9, name
        assert weight_difference(run.state, four[name].state) <= 1e-9, name
