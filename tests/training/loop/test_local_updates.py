"""Machines that average their weights now and then (DiLoCo): two machines of two ranks each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.checkpoint import read_backup
from modules.config import TrainConfig
from modules.training.studies.parity import loss_difference, weight_difference
from tests.pair_jobs import ADAPTED, TIMEOUTS
from tests.runs import (
    ROOT,
    Job,
    Run,
    group_exit_codes,
    group_settings,
    recorded,
    same_state,
    same_tensors,
    tiny_config,
    train_alone,
    train_group,
)

pytestmark = [pytest.mark.long, pytest.mark.slow]

STEPS = 7  # an epoch of 33 images in steps of 6, whose last one has 3 samples, and one more
COMMON: dict[str, Any] = {
    "precision": "fp64",
    "ema": True,
    "ema_decay": 0.9,
    "batch_size": 3,
    "global_batch_size": 6,
    "max_steps": STEPS,
    "validation_split": 0.2,
    "validate_every": "3 steps",
}
SGD: dict[str, Any] = {"optimizer": {"name": "sgd", "momentum": 0.0}, "learning_rate": 0.05}
AVERAGED: dict[str, Any] = {
    **SGD,
    "max_grad_norm": None,
    "outer_learning_rate": 1.0,
    "outer_momentum": 0.0,
    "outer_compression": "none",
}
DILOCO: dict[str, Any] = {
    "local_steps": 3,
    "outer_learning_rate": 0.7,
    "outer_momentum": 0.9,
    "precision": "fp32",
}
FROZEN: dict[str, Any] = {
    **DILOCO,
    "family": ADAPTED["family"],
    "parts": [{"part": "unet"}, {"part": "text_encoder", "stop_after": "4 steps"}],
    "max_steps": 9,
    "backup_every": "3 steps",
    "backups_kept": 9,
}
POISONED: dict[str, Any] = {
    **DILOCO,
    "family": str(ROOT / "tests" / "poisoned_family.py"),
    "family_options": {"batch_norm": True},
    "backup_every": "3 steps",
    "validate_every": "never",
    "max_nonfinite_steps": 2,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def runs(images: Path, place: Path) -> dict[str, Run]:
    def config(name: str, **settings: Any) -> TrainConfig:
        given = {**COMMON, **group_settings(4), **TIMEOUTS, "num_nodes": 2, "run_name": name, **settings}
        return tiny_config(images, place, **given)

    every: dict[str, Any] = {**DILOCO, **SGD, "outer_compression": "int8", "backup_every": "4 steps"}
    (place / "record").mkdir()
    touchy: dict[str, Any] = {"dropout": 0.2, "batch_norm": True}
    recording = {"record": str(place / "record"), **touchy}
    jobs = {
        "mean": Job(config("mean", local_steps=1, **AVERAGED)),
        "diloco": Job(config("diloco", **DILOCO, max_grad_norm=0.1, family_options=recording)),
        "whole": Job(config("whole", **every)),
        "half": Job(config("half", **{**every, "max_steps": 4})),
        "resumed": Job(config("half", **every), "latest"),
        "nan": Job(config("nan", **{**DILOCO, "precision": "fp16"}, family_options={"faults": ["nan:3:4"]})),
        "memory": Job(config("memory", **DILOCO, family_options={"faults": ["out_of_memory:1:4"]})),
        "frozen": Job(config("frozen", **FROZEN)),
        "poisoned": Job(config("poisoned", **POISONED)),
        "none": Job(config("none", **DILOCO, global_batch_size=1, batch_size=1)),
    }
    return train_group(4, jobs, machines=2)


def alone(images: Path, place: Path, name: str, resume: str | None = None, **settings: Any) -> Run:
    code, run = train_alone(tiny_config(images, place, **{**COMMON, "run_name": name, **settings}), resume)
    assert code == 0, run.failure(0)
    return run


def test_a_plain_mean_after_every_step_is_training_on_one_device(
    images: Path, place: Path, runs: dict[str, Run]
) -> None:
    one, mean = alone(images, place, "one", **AVERAGED), runs["mean"]
    assert group_exit_codes(mean, 4) == [0] * 4, mean.failure(0)
    assert loss_difference(one.losses, mean.losses) < 1e-9
    assert weight_difference(one.state, mean.state) < 1e-9
    measured = [[float(str(event["loss"])) for event in run.events("validation")] for run in (one, mean)]
    assert measured[0] == pytest.approx(measured[1], rel=1e-9)
    assert one.state.ema is not None
    assert mean.state.ema is not None
    assert all(torch.allclose(tensor, mean.state.ema[name], rtol=1e-9) for name, tensor in one.state.ema.items())


def test_machines_share_the_samples_of_the_global_order(place: Path, runs: dict[str, Run]) -> None:
    assert group_exit_codes(runs["diloco"], 4) == [0] * 4, runs["diloco"].failure(0)
    assert all(math.isfinite(loss) for loss in runs["diloco"].losses)
    ranks = [recorded(place / "record", rank, skip_first_call=True) for rank in range(4)]
    samples = [sample for rank in ranks for sample in rank.samples]
    epoch = [sample[0] for sample in samples]
    assert len(samples) == 6 * 5 + 3 + 6
    assert len(set(epoch)) == 33, "each image once in the epoch, some again in the next"
    weights = [rank.weights for rank in ranks]
    assert weights[0] == weights[1], "one machine"
    assert weights[2] == weights[3]
    assert weights[0][:1] == weights[2][:1]
    assert set(weights[0]) != set(weights[2]), "between outer steps machines differ"
    assert weights[0][3] == weights[2][3], "after three steps they do not"


def test_a_resumed_run_goes_on_with_the_outer_state(runs: dict[str, Run]) -> None:
    """SGD keeps nothing of its own, so that the machines' backup is all."""
    whole, resumed = runs["whole"], runs["resumed"]
    assert resumed.losses == whole.losses
    assert same_state(resumed.state, whole.state)
    for run in (whole, resumed):
        assert run.state.outer is not None
        assert not same_tensors(
            {name: run.state.outer[f"anchor/{name}"] for name in run.state.weights}, run.state.weights
        ), "step 7 is none of an outer step"
    assert resumed.state.outer is not None
    assert whole.state.outer is not None
    assert same_tensors(resumed.state.outer, whole.state.outer)


def test_it_goes_on_on_one_machine_and_back(images: Path, place: Path, runs: dict[str, Run]) -> None:
    state = runs["half"].state
    one = alone(images, place, "half", "latest", **{**DILOCO, **SGD, "max_steps": 9})
    assert one.state.position.step == 9
    assert one.state.outer is None, "one machine has no outer steps"
    assert state.position.machines == 2
    assert "a machine's step now has 6 samples on average instead of 3" in one.warnings
    assert state.position.global_batch_size == one.state.position.global_batch_size
    again: dict[str, Any] = {**COMMON, **group_settings(2), **TIMEOUTS, **DILOCO, **SGD}
    config = tiny_config(images, place, **{**again, "num_nodes": 2, "run_name": "half", "max_steps": 11})
    run = train_group(2, {"again": Job(config, "latest")}, machines=2)["again"]
    assert run.state.position.step == 11, run.failure(0)
    assert run.state.outer is not None
    assert "a machine's step now has 3 samples on average instead of 6" in run.warnings


def test_what_stop_after_has_frozen_is_moved_by_no_outer_step(runs: dict[str, Run]) -> None:
    assert group_exit_codes(runs["frozen"], 4) == [0] * 4, runs["frozen"].failure(0)
    states = [read_backup(folder) for folder in sorted(Path(runs["frozen"].folder.backup_dir).iterdir())]
    assert [state.position.step for state in states] == [3, 6, 9]
    parts = {
        part: [{n: w for n, w in state.weights.items() if n.startswith(part)} for state in states]
        for part in ("unet", "text_encoder")
    }
    assert not same_tensors(parts["text_encoder"][0], parts["text_encoder"][1]), "the fourth step moved it"
    assert same_tensors(parts["text_encoder"][1], parts["text_encoder"][2])
    assert not same_tensors(parts["unet"][1], parts["unet"][2])
    outer = states[-1].outer
    assert outer is not None
    assert not any(bool(m.any()) for name, m in outer.items() if name.startswith("momentum/text_encoder"))


def test_a_machine_that_is_not_finite_again_and_again_ends_the_run(runs: dict[str, Run]) -> None:
    run = runs["poisoned"]
    assert 0 not in group_exit_codes(run, 4)
    assert "(machine 1) were not finite 2 times in a row (the last was step 6)" in run.failure(0)
    assert (
        "(machine 1) were not finite, so that its part of the last 3 steps does not count (1 in a row)" in run.warnings
    )
    assert "machine 0" not in run.warnings
    state = run.state
    assert state.position.step == 3
    assert all(bool(tensor.isfinite().all()) for tensor in (*state.weights.values(), *state.optimizer.tensors.values()))


def test_one_machine_skips_its_steps_and_the_others_go_on(runs: dict[str, Run]) -> None:
    assert group_exit_codes(runs["nan"], 4) == [0] * 4, runs["nan"].failure(0)
    assert "the gradient is not finite, so the machine that had it skipped it" in runs["nan"].warnings
    assert group_exit_codes(runs["memory"], 4) == [0] * 4, runs["memory"].failure(0)
    assert "Out of memory on rank 1: the machine that had it skipped step" in runs["memory"].warnings
    assert group_exit_codes(runs["none"], 4) == [0] * 4, runs["none"].failure(0)
    assert all(math.isfinite(loss) for loss in runs["none"].losses)
