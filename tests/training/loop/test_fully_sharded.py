"""A model divided among the ranks trains as a whole one does, and leaves the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.config import TrainConfig
from modules.distributed import RankEnv
from modules.run import RunFolder
from modules.training.studies.parity import loss_difference, weight_difference
from modules.training.worker import run_worker
from tests.pair_jobs import TIMEOUTS
from tests.ports import free_port
from tests.runs import (
    ROOT,
    Job,
    Run,
    group_exit_codes,
    group_settings,
    same_state,
    tiny_config,
    train_alone,
    train_group,
)

pytestmark = [pytest.mark.long, pytest.mark.slow]

STEPS = 7  # an epoch, whose last step has one sample, and two of the next
BLOCKS = str(ROOT / "tests" / "block_family.py")
# an odd width divides by no number of ranks; clipping and averaging are at work in every run
COMMON: dict[str, object] = {
    "family": BLOCKS,
    "family_options": {"width": 5},
    "precision": "fp64",
    "ema": True,
    "ema_decay": 0.9,
    "max_grad_norm": 0.1,
    "batch_size": 3,
    "max_steps": STEPS,
    "validation_split": 0.2,
    "validate_every": "4 steps",
    "samples": [{"prompt": "a red disc", "width": 16, "height": 24}],
    "sample_every": "5 steps",
}
TOUCHY: dict[str, Any] = {
    **COMMON,
    "family_options": {"width": 5, "batch_norm": True, "dropout": 0.2},
    "precision": "fp32",
    "sample_every": "never",
}
EXACT: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"batch_size": 1},
    "whole gradients": {"batch_size": 1, "fsdp_whole_gradients": True},
    "kept": {"fsdp_reshard_after_forward": False},
    "offloaded": {"fsdp_cpu_offload": True},
    "recomputed": {"gradient_checkpointing": True},
}
ODD: dict[str, dict[str, Any]] = {
    "frozen with sgd": {"family_options": {"width": 5, "frozen": True}, "optimizer": "sgd"},
    "tied with adam": {"family_options": {"width": 5, "tied": True}, "optimizer": "adam"},
    "without blocks and not fused": {
        "family": str(ROOT / "tests" / "tiny_family.py"),
        "optimizer": {"name": "adamw", "fused": False},
    },
    "lion": {"optimizer": "lion", "learning_rate": 0.001},
    "fp32": {"precision": "fp32"},
    "unlike": {"family_options": {"width": 5, "unlike": True}},
    "unused": {
        "family_options": {"width": 5, "unused": True},
        "find_unused_parameters": True,
        "optimizer": {"name": "adamw", "weight_decay": 0.0},  # a gradient of zero then changes nothing
    },
}
ROUNDED: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16 sums": {"precision": "fp32", "fsdp_reduce_precision": "bf16"},
}


# on two machines of two ranks each
REPLICATED: dict[str, dict[str, Any]] = {
    "machines": {},
    "machines whole gradients": {"batch_size": 1, "fsdp_whole_gradients": True},
    "machines offloaded": {"fsdp_cpu_offload": True, "batch_size": 1},
    "machines unused": ODD["unused"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def sharded(images: Path, place: Path) -> dict[str, Run]:
    """All runs of two ranks, and those that continue others."""

    def config(name: str, mode: str = "fully_sharded", **settings: Any) -> TrainConfig:
        group = {**group_settings(2), **TIMEOUTS, "training_mode": mode}
        return tiny_config(images, place, **{**COMMON, **group, "run_name": name.replace(" ", "-"), **settings})

    jobs = {name: Job(config(name, **settings)) for name, settings in {**EXACT, **ODD, **ROUNDED}.items()}
    jobs["distributed"] = Job(config("distributed", "distributed"))
    jobs["uninterrupted"] = Job(config("uninterrupted", **TOUCHY))
    jobs["half"] = Job(config("half", **{**TOUCHY, "max_steps": 4}))
    jobs["resumed"] = Job(config("half", **TOUCHY), "latest")
    # one sample at a time, three a step: rank 0 has one of them, and a padding micro-batch if all ranks need two
    padded: dict[str, Any] = {
        "family_options": {"width": 5, "batch_norm": True},
        "batch_size": 1,
        "global_batch_size": 3,
        "max_steps": 4,
        "sample_every": "never",
    }
    jobs["padded"] = Job(config("padded", **padded))
    jobs["not padded"] = Job(config("not padded", "distributed", **padded))
    jobs["begun distributed"] = Job(config("changes-1", "distributed", max_steps=4))
    jobs["ended sharded"] = Job(config("changes-1"), "latest")
    jobs["begun sharded"] = Job(config("changes-2", max_steps=4))
    jobs["ended distributed"] = Job(config("changes-2", "distributed"), "latest")
    once = {"width": 5, "faults": ["nan:1:4"]}
    jobs["nan once"] = Job(config("nan once", family_options=once))
    jobs["nan once, fp16"] = Job(config("nan once 16", family_options=once, precision="fp16"))
    stops = [{"prompt": "stop on rank 1", "width": 16, "height": 16}] * 3
    jobs["stopped"] = Job(config("stopped", samples=stops, max_steps=1000))
    # the last one: a rank that leaves in the middle of a step may leave torch in no state to start another run
    faults = {"width": 5, "faults": ["out_of_memory:1:4"]}
    jobs["out of memory"] = Job(config("out of memory", family_options=faults))
    return train_group(2, jobs)


@pytest.fixture(scope="module")
def replicated(images: Path, place: Path) -> dict[str, Run]:
    """All runs of two machines, and those that continue others."""

    def config(name: str, **settings: Any) -> TrainConfig:
        group = {**group_settings(4), **TIMEOUTS, "training_mode": "fully_sharded", "fsdp_replicate": "machines"}
        return tiny_config(images, place, **{**COMMON, **group, "run_name": name.replace(" ", "-"), **settings})

    jobs = {name: Job(config(name, **settings)) for name, settings in REPLICATED.items()}
    jobs["machines fp16"] = Job(config("machines fp16", precision="fp16", batch_size=1))
    jobs["machines uninterrupted"] = Job(config("machines-u", **TOUCHY))
    jobs["machines half"] = Job(config("machines-h", **{**TOUCHY, "max_steps": 4}))
    jobs["machines resumed"] = Job(config("machines-h", **TOUCHY), "latest")
    # one run, begun by DDP and continued in another way every other step
    ways = {2: {"fsdp_replicate": "none", "training_mode": "distributed"}, 4: {}, 5: {"fsdp_replicate": "none"}}
    for steps, way in ways.items():
        resume = "latest" if steps > 2 else None
        jobs[f"machines at times {steps}"] = Job(config("at-times", max_steps=steps, **way), resume)
    jobs["machines at times"] = Job(config("at-times"), "latest")
    return train_group(4, jobs, machines=2)


def alone(images: Path, place: Path, name: str, **settings: object) -> Run:
    named = {**COMMON, "run_name": f"alone-{name.replace(' ', '-')}", **settings}
    code, run = train_alone(tiny_config(images, place, **named))
    assert code == 0, run.failure(0)
    return run


@pytest.fixture(scope="module")
def one(images: Path, place: Path) -> Run:
    return alone(images, place, "one")


def assert_same(first: Run, other: Run, tolerance: float) -> None:
    assert len(first.losses) == STEPS
    assert loss_difference(first.losses, other.losses) <= tolerance
    assert weight_difference(first.state, other.state) <= tolerance
    measured = [[float(str(event["loss"])) for event in run.events("validation")] for run in (first, other)]
    assert measured[0] == pytest.approx(measured[1], rel=tolerance)


@pytest.mark.parametrize("name", [*EXACT, "distributed", "ended sharded", "ended distributed"])
def test_two_ranks_train_as_one_does(sharded: dict[str, Run], one: Run, name: str) -> None:
    assert_same(one, sharded[name], 1e-9)


def test_padding_does_not_enter_the_averages_of_batch_norm(sharded: dict[str, Run]) -> None:
    padded, plain = sharded["padded"].state.weights, sharded["not padded"].state.weights
    averages = [name for name in plain if "running_" in name]
    assert averages
    for name in averages:
        torch.testing.assert_close(padded[name], plain[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("name", ODD)
def test_whatever_the_model_and_the_optimizer(images: Path, place: Path, sharded: dict[str, Run], name: str) -> None:
    assert_same(alone(images, place, name, **ODD[name]), sharded[name], 1e-4 if name == "fp32" else 1e-9)


@pytest.mark.parametrize("name", ROUNDED)
def test_fewer_bits_round(sharded: dict[str, Run], one: Run, name: str) -> None:
    assert 1e-9 < loss_difference(one.losses, sharded[name].losses) < 0.02
    assert all(weight.dtype == torch.float32 for weight in sharded[name].state.weights.values())


def test_the_checkpoint_is_that_of_whole_weights(sharded: dict[str, Run], one: Run) -> None:
    for other in (sharded["plain"], sharded["offloaded"], sharded["distributed"]):
        first, second = one.state, other.state
        assert first.optimizer.groups == second.optimizer.groups
        assert first.optimizer.values == second.optimizer.values
        assert first.ema is not None
        assert second.ema is not None
        pairs = (
            (first.weights, second.weights),
            (first.ema, second.ema),
            (first.optimizer.tensors, second.optimizer.tensors),
        )
        for expected, found in pairs:
            assert expected.keys() == found.keys()
            for name, tensor in expected.items():
                torch.testing.assert_close(found[name], tensor, rtol=1e-7, atol=1e-12, msg=name)


def test_a_stop_of_one_rank_ends_sampling_on_all(sharded: dict[str, Run]) -> None:
    names = {file.name for file in sharded["stopped"].folder.samples_dir.iterdir() if "000005" in file.name}
    assert names == {"step-000005-00.png", "step-000005-grid.png"}
    assert sharded["stopped"].events()[-1]["reason"] == "terminated"


def files(run: Run) -> set[str]:
    folders = (run.folder.backup_dir, run.folder.model_dir, run.folder.samples_dir)
    return {str(file.relative_to(run.folder.path)) for folder in folders for file in folder.rglob("*")}


def test_the_files_are_the_same_and_so_are_the_pictures(sharded: dict[str, Run], one: Run) -> None:
    kinds = ("weights", "optimizer", "ema")
    whole = {f"backup/step-{STEPS:06d}/{kind}.safetensors" for kind in kinds}
    parts = {f"backup/step-{STEPS:06d}/{kind}-0000{n}-of-00002.safetensors" for kind in kinds for n in (1, 2)}
    assert files(sharded["plain"]) == files(one) - whole | parts
    for image in one.folder.samples_dir.glob("*.png"):
        first, second = (Image.open(run.folder.samples_dir / image.name).tobytes() for run in (one, sharded["kept"]))
        assert max(abs(a - b) for a, b in zip(first, second, strict=True)) <= 1


@pytest.mark.parametrize("name", ["plain", "offloaded", "kept", "distributed"])
def test_the_saved_model_is_the_average(sharded: dict[str, Run], one: Run, name: str) -> None:
    for run in (one, sharded[name]):
        saved, average = load_file(run.folder.model_dir / "weights.safetensors"), run.state.ema
        assert average is not None
        assert saved.keys() == average.keys()
        assert all(torch.equal(tensor, average[name].to(tensor.dtype)) for name, tensor in saved.items())


def test_it_resumes_in_the_same_bits(sharded: dict[str, Run]) -> None:
    whole, resumed = sharded["uninterrupted"], sharded["resumed"]
    assert resumed.losses == whole.losses
    assert same_state(resumed.state, whole.state)
    assert any("running_mean" in name for name in whole.state.weights)


def test_one_process_goes_on_with_its_backup(images: Path, place: Path, sharded: dict[str, Run], one: Run) -> None:
    backup = sharded["ended distributed"].folder.backup_dir / "step-000004"
    code, run = train_alone(tiny_config(images, place, **COMMON, run_name="alone-again"), str(backup))
    assert code == 0
    assert run.events("step")[0]["step"] == 5
    assert weight_difference(one.state, run.state) <= 1e-9


@pytest.mark.parametrize("name", ["nan once", "nan once, fp16"])
def test_one_ranks_non_finite_gradient_is_skipped_by_all(sharded: dict[str, Run], name: str) -> None:
    run = sharded[name]
    assert group_exit_codes(run, 2) == [0, 0]
    assert "the gradient is not finite, so every rank skipped it (1 in a row)" in run.warnings
    assert sum(loss != loss for loss in run.losses) == 1  # nan


def test_out_of_memory_ends_the_run_and_says_what_to_do(sharded: dict[str, Run]) -> None:
    run = sharded["out of memory"]
    assert group_exit_codes(run, 2) == [3, 3]
    assert run.failure(1).startswith("Out of memory on rank 1")
    assert "cannot be skipped" in run.failure(1)


def test_weights_that_do_not_learn_are_not_counted(sharded: dict[str, Run]) -> None:
    started = sharded["frozen with sgd"].events("started")[0]
    assert started["trainable_parameters"] == (5 * 5 * 9 + 5) * 2 + 5 * 2 + (5 * 3 * 9 + 3) + 1


def test_a_group_of_one_trains_the_same(images: Path, place: Path, one: Run) -> None:
    settings = {**COMMON, **group_settings(1), "training_mode": "fully_sharded", "run_name": "group-of-one"}
    config = tiny_config(images, place, **settings)
    folder = RunFolder.create(config)
    assert run_worker(config, folder, RankEnv(0, 0, 1, "127.0.0.1", free_port())) == 0
    assert_same(one, Run(folder), 1e-9)


@pytest.mark.parametrize("name", [*REPLICATED, "machines at times"])
def test_two_machines_train_as_one_rank_does(
    images: Path, place: Path, replicated: dict[str, Run], one: Run, name: str
) -> None:
    settings = REPLICATED.get(name, {})
    expected = alone(images, place, f"one {name}", **settings) if "family_options" in settings else one
    assert_same(expected, replicated[name], 1e-9)
    halved = replicated["machines fp16"].losses[:5]  # the fifth step is skipped: the first loss scale is too large
    assert 1e-9 < loss_difference(one.losses[:5], halved) < 0.02


def test_two_machines_leave_the_files_of_one_and_resume_in_the_same_bits(replicated: dict[str, Run], one: Run) -> None:
    kinds = ("weights", "optimizer", "ema")
    parts = {f"{kind}-0000{n}-of-00002.safetensors" for kind in kinds for n in (1, 2)}
    folder = replicated["machines"].folder
    assert {file.name for file in folder.backup_dir.glob("*/*-of-*.safetensors")} == parts
    saved, average = (load_file(run.folder.model_dir / "weights.safetensors") for run in (replicated["machines"], one))
    for name, tensor in average.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-6, atol=1e-9)
    whole, resumed = replicated["machines uninterrupted"], replicated["machines resumed"]
    assert resumed.losses == whole.losses
    assert same_state(resumed.state, whole.state)


def test_one_process_goes_on_with_the_backup_of_two_machines(
    images: Path, place: Path, replicated: dict[str, Run], one: Run
) -> None:
    backup = replicated["machines at times"].folder.backup_dir / "step-000004"
    code, run = train_alone(tiny_config(images, place, **COMMON, run_name="alone-after-machines"), str(backup))
    assert code == 0
    assert run.events("step")[0]["step"] == 5
    assert weight_difference(one.state, run.state) <= 1e-9
