"""What a resumed run restores besides weights: the scaled learning rate, and early stopping."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.training.state.checkpoint_state import plan_for
from tests.checkpoint.states import state_at
from tests.runs import tiny_config, train_alone

IMPATIENT: dict[str, object] = {
    "max_steps": 40,
    "learning_rate": 3.0,
    "validation_split": 0.2,
    "validate_every": "2 steps",
    "early_stopping_patience": 3,
}


def test_a_resumed_run_keeps_the_scaling_it_started_with() -> None:
    plan = plan_for(TrainConfig(learning_rate=0.3), 1, state_at(4))  # began with 0.1, scaled to 0.2
    assert plan.learning_rate == pytest.approx(0.6)
    assert plan.original_learning_rate == 0.3
    assert plan.global_batch_size == 8


@pytest.mark.slow
def test_a_resumed_run_stops_early_at_the_same_step(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, run_name="whole", backup_every="1 step", backups_kept=99, **IMPATIENT)
    _, whole = train_alone(config)
    assert whole.events()[-1]["reason"] == "early_stopping"
    last = whole.state.position.step
    assert last < 40
    for step in (last - 4, last - 2):  # after one and two validations without improvement
        place = tmp_path / f"from {step}"
        shutil.copytree(whole.folder.path, place / "runs" / "x")
        for backup in (place / "runs" / "x" / "backup").iterdir():
            if backup.name > f"step-{step:06d}":
                shutil.rmtree(backup)
        _, resumed = train_alone(tiny_config(images, place, **IMPATIENT), "latest")
        assert resumed.events()[-1]["reason"] == "early_stopping"
        assert resumed.state.position == whole.state.position
