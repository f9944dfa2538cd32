"""The real command with the real family: one and two processes train the same model; tests/families has four."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.run import RunFolder
from modules.training.studies.parity import loss_difference, weight_difference
from tests.runs import Run, group_settings, run_command, tiny_config, train_alone, train_command

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

FAMILY = {
    "family": "pixel_diffusion",
    "family_options": {"width": 8, "tokens": 4, "vocabulary": 64},
    "precision": "fp64",
    "max_steps": 50,
}


def trained(config: TrainConfig, place: Path, *flags: str) -> Run:
    done = run_command(train_command(config, place / f"{config.run_name}.json", *flags))
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))


def test_one_and_two_processes_agree_after_fifty_steps(images: Path, tmp_path: Path) -> None:
    code, one = train_alone(tiny_config(images, tmp_path, run_name="one", **FAMILY))
    assert code == 0
    two = {**FAMILY, "world_size": 2, "batch_size": 2, "gradient_accumulation_steps": 2}
    other = trained(tiny_config(images, tmp_path, run_name="two", **two), tmp_path, "--multi_gpu")
    assert [run.events("started")[0]["world"] for run in (one, other)] == [1, 2]
    assert len(other.losses) == 50
    assert loss_difference(one.losses, other.losses) <= 1e-9
    assert weight_difference(one.state, other.state) <= 1e-9


def test_verify_parity_passes(images: Path, tmp_path: Path) -> None:
    dropout = {"family_options": {"dropout": 0.2}}
    config = tiny_config(images, tmp_path, **group_settings(2), precision="fp64", **dropout)
    done = run_command(train_command(config, tmp_path / "c.json", "--verify_parity"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Parity holds: all runs agree to a relative 1e-09" in done.stdout
    assert "2 processes" in done.stdout


def test_verify_parity_fails_with_batch_norm(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, **group_settings(2), family_options={"batch_norm": True})
    done = run_command(train_command(config, tmp_path / "c.json", "--verify_parity"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Parity does NOT hold" in done.stdout
    assert "BatchNorm" in done.stdout
