"""The steps that the window shows before a run are those of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import TrainConfig, end_of_run
from modules.data.index.build import build_index
from modules.data.loading.count_steps import steps_per_epoch
from modules.data.loading.order import make_order
from tests.data.helpers import config_for, write_image
from tests.runs import ROOT


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 3, "batch_size": 4},
        {"epochs": 5, "batch_size": 4, "validation_split": 0.3, "repeats": 2.5},
        {"epochs": 3, "batch_size": 2, "gradient_accumulation_steps": 3, "drop_last": True},
        {"epochs": 100, "max_steps": 7},
    ],
)
def test_steps_are_those_of_the_order(settings: dict[str, object], tmp_path: Path) -> None:
    for number in range(23):
        write_image(tmp_path / "images" / f"{number}.png", 40 + 8 * (number % 3), 40, number)
    for number in range(3):
        (tmp_path / "images" / f"broken-{number}.png").write_bytes(b"no image")
    config = config_for(tmp_path / "images", cache=tmp_path / "cache", **settings)
    before = steps_per_epoch(config, 2)  # opens every image; afterwards the index knows the good ones
    index = build_index(config, config.seed, 8, tmp_path / "cache")
    batch = config.batch_size * 2 * config.gradient_accumulation_steps
    order = make_order(index, config, config.seed, index.width > 0, batch)
    assert before == steps_per_epoch(config, 2) == order.steps_per_epoch > 0


@pytest.mark.slow
def test_program_answers_in_json(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "modules.data.loading.count_steps", "1"]
    config = TrainConfig.model_validate({"concepts": [{"path": str(tmp_path / "missing")}]}).model_dump_json()
    done = subprocess.run(argv, cwd=ROOT, input=config, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not exist" in json.loads(done.stdout)["error"]


def test_smaller_limit_ends_the_run() -> None:
    def end(**settings: int) -> str:
        return end_of_run(TrainConfig.model_validate(settings), 10)

    assert end(epochs=3) == ""
    assert end(epochs=3, max_steps=15) == "max_steps ends the run after 15 steps, 1.5 of 3 epochs."
    assert end(epochs=3, max_steps=100) == "The 3 epochs end the run after 30 of 100 steps."
    assert end(epochs=1, max_steps=100) == "The epoch ends the run after 10 of 100 steps."
