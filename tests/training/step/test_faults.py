"""Out of memory and gradients that are not finite: all ranks do the same, and the run continues or says why not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from modules.checkpoint import read_backup
from modules.config import TrainConfig
from modules.run import root_cause
from modules.training.memory.probe import optimizer_state_like
from modules.training.optim.optimizers import build_optimizer
from tests.pair_jobs import STATEFUL
from tests.runs import Run, group_exit_codes, recorded, same_state, tiny_config, train_alone

pytestmark = [pytest.mark.xdist_group("pair"), pytest.mark.slow]

PAIR_JOBS: dict[str, dict[str, object]] = {
    "out of memory": {
        "max_steps": 40,
        "family_options": {"faults": ["out_of_memory:1:5"], "record": "out of memory"},
    },
    "never enough memory": {"family_options": {"faults": ["out_of_memory:1:4+"]}},
    **{
        f"out of memory in the {place}": {
            "max_steps": 6,
            "aspect_ratio_bucketing": False,  # one micro-batch a step
            "family_options": {"batch_norm": True, "faults": [f"{place}_out_of_memory:1:4"], "record": place},
        }
        for place in ("forward", "backward")
    },
    "never enough memory in the backward": {"family_options": {"faults": ["backward_out_of_memory:1:2+"]}},
    "find unused in the backward": {
        "find_unused_parameters": True,
        "family_options": {"faults": ["backward_out_of_memory:1:2"]},
    },
    "not even the warm-up fits": {"family_options": {"faults": ["fits:1:0"]}},
    "uninterrupted": STATEFUL,
    "probed": {**STATEFUL, "probe_memory": "on"},
    "probed with little memory": {
        "probe_memory": "on",
        "aspect_ratio_bucketing": False,
        "family_options": {"faults": ["fits:1:2"]},
    },
    "nan once": {"family_options": {"faults": ["nan:1:4"], "record": "nan once"}},
    "nan forever": {
        "max_steps": 30,
        "backup_every": "2 steps",
        "max_nonfinite_steps": 3,
        "family_options": {"faults": ["nan:0:6+"]},
    },
}


def weights_of(place: Path, rank: int) -> list[float]:
    return recorded(place, rank, skip_first_call=True).weights


def test_out_of_memory_on_one_rank_makes_all_pass_over_the_step(pair: dict[str, Run], pair_place: Path) -> None:
    run = pair["out of memory"]
    assert run.exit_code == 0
    assert run.state.position.step == 40
    assert "Out of memory" in run.warnings
    assert "at most 2 samples" in run.warnings
    skipped = [event for event in run.events("step") if event["grad_norm"] is None]
    assert len(skipped) == 1
    assert weights_of(pair_place / "out of memory", 0) == weights_of(pair_place / "out of memory", 1)


def test_out_of_memory_halves_micro_batches_on_every_rank(pair_place: Path) -> None:
    for rank in (0, 1):
        lines = (pair_place / "out of memory" / f"rank-{rank}.jsonl").read_text().splitlines()
        sizes: dict[str, int] = {}
        for line in lines:
            call = line.split(",")[0]
            sizes[call] = sizes.get(call, 0) + 1
        late = list(sizes.values())[-6:]
        assert max(sizes.values()) > 2
        assert max(late) <= 2


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_out_of_memory_inside_the_last_micro_batch_is_survived(
    pair: dict[str, Run], pair_place: Path, place: str
) -> None:
    run = pair[f"out of memory in the {place}"]
    assert group_exit_codes(run, 2) == [0, 0]
    assert [event["step"] for event in run.events("step") if event["grad_norm"] is None] == [3]
    assert "at most 2 samples" in run.warnings
    assert weights_of(pair_place / place, 0) == weights_of(pair_place / place, 1)
    assert run.state.position.step == 6


@pytest.mark.parametrize(
    "name", ["never enough memory", "never enough memory in the backward", "not even the warm-up fits"]
)
def test_no_memory_for_one_sample_ends_the_run_at_once(pair: dict[str, Run], name: str) -> None:
    run = pair[name]
    assert group_exit_codes(run, 2) == [3, 3]
    cause = root_cause(run.folder)
    assert cause is not None
    assert "Out of memory with a single sample at a time, on rank 1 (" in cause.message
    assert "gradient_checkpointing" in cause.advice
    # the other rank noticed the loss, not a time-out
    assert "Timed out" not in run.failure(0)


def test_a_step_that_cannot_be_completed_ends_the_run_with_what_to_set(pair: dict[str, Run]) -> None:
    run = pair["find unused in the backward"]
    assert group_exit_codes(run, 2) == [3, 3]
    assert run.failure(1).startswith("Out of memory on rank 1 (")
    assert "being summed over the ranks" in run.failure(1)


def test_out_of_memory_alone_halves_until_it_fits(images: Path, tmp_path: Path) -> None:
    faults = {"faults": ["out_of_memory:0:2", "out_of_memory:0:6"]}
    kept = {"backup_every": "1 step", "backups_kept": 9}
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=8, family_options=faults, precision="fp16", **kept))
    assert code == 0
    scales = [read_backup(backup).scaler["scale"] for backup in sorted(run.folder.backup_dir.glob("step-*"))]
    assert scales == 8 * [65536], "a lower scale is for overflow, which this was not"
    assert "at most 1 sample." in run.warnings
    assert "lack of memory so far: 2." in run.warnings
    assert "not finite" not in run.warnings
    assert run.state.position.step == 8


def test_the_memory_probe_changes_no_bit(pair: dict[str, Run]) -> None:
    probed, plain = pair["probed"], pair["uninterrupted"]
    assert same_state(probed.state, plain.state)
    assert probed.losses == plain.losses
    log = probed.folder.log_file(0).read_text()
    assert "Memory probe: 3 x " in log
    assert "Memory probe" not in plain.folder.log_file(0).read_text()


def test_the_memory_probe_limits_micro_batches_on_every_rank(pair: dict[str, Run]) -> None:
    run = pair["probed with little memory"]
    assert run.exit_code == 0
    assert "micro-batches hold at most 2 instead of 4 samples" in run.warnings
    assert "no more of 16x16 pixels fit into the memory of rank 1" in run.warnings
    assert "skipped" not in run.warnings
    assert all(event["grad_norm"] is not None for event in run.events("step"))
    for rank in (0, 1):
        assert "skipped" not in run.folder.log_file(rank).read_text()


def test_the_memory_probe_ends_a_run_that_cannot_start(images: Path, tmp_path: Path) -> None:
    settings = {"probe_memory": "on", "family_options": {"faults": ["fits:0:0"]}}
    code, run = train_alone(tiny_config(images, tmp_path, **settings))
    assert code == 3
    assert "Out of memory on rank 0 with a single sample of " in run.failure(0)
    assert not run.events("step")


@pytest.mark.parametrize("accumulates", [True, False])
def test_the_memory_probe_holds_the_gradients_of_earlier_micro_batches(
    images: Path, tmp_path: Path, accumulates: bool
) -> None:
    held: list[bool] = []

    def look(module: nn.Module, _: object) -> None:
        if type(module).__name__ == "TinyNet":
            held.append(all(weight.grad is not None for weight in module.parameters()))

    samples = {"batch_size": 4, "global_batch_size": 8 if accumulates else 4, "aspect_ratio_bucketing": False}
    watching = register_module_forward_pre_hook(look)
    try:
        code, _ = train_alone(tiny_config(images, tmp_path, probe_memory="on", max_steps=1, **samples))
    finally:
        watching.remove()
    assert code == 0
    assert held[0] == accumulates


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "adafactor"])
def test_the_memory_probe_reserves_what_the_optimizer_will_take(name: str) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 5), nn.Linear(5, 7))
    config = TrainConfig.model_validate({"optimizer": name})
    optimizer = build_optimizer(model.parameters(), config)
    reserved = sum(tensor.nbytes for tensor in optimizer_state_like(optimizer, config))
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert reserved == sum(value.nbytes for value in states if isinstance(value, torch.Tensor)) > 0
    assert optimizer_state_like(optimizer, config) == []


def test_a_non_finite_gradient_is_skipped_by_all_ranks(pair: dict[str, Run], pair_place: Path) -> None:
    run = pair["nan once"]
    assert run.exit_code == 0
    assert run.warnings.count("not finite") == 1
    assert weights_of(pair_place / "nan once", 0) == weights_of(pair_place / "nan once", 1)
    assert all(bool(tensor.isfinite().all()) for tensor in run.state.weights.values())
    assert all(bool(tensor.isfinite().all()) for tensor in run.state.optimizer.tensors.values())


def test_too_many_skipped_steps_end_the_run_naming_a_backup(pair: dict[str, Run]) -> None:
    run = pair["nan forever"]
    assert group_exit_codes(run, 2) == [3, 3]
    for rank in (0, 1):
        assert "3 steps in a row" in run.failure(rank)
        assert f"{run.folder.backup_dir}/step-0000" in run.failure(rank)
    assert all(bool(tensor.isfinite().all()) for tensor in run.state.weights.values())


def test_broken_steps_that_are_not_in_a_row_are_tolerated(images: Path, tmp_path: Path) -> None:
    square = {"aspect_ratio_bucketing": False, "batch_size": 8}  # one micro-batch a step
    faults = {"faults": ["nan:0:1", "nan:0:3", "nan:0:5"]}
    code, run = train_alone(tiny_config(images, tmp_path, max_nonfinite_steps=2, family_options=faults, **square))
    assert code == 0
    assert run.warnings.count("(1 in a row)") == run.warnings.count("not finite") == 3


def test_a_mistake_in_the_family_is_told_with_its_words(images: Path, tmp_path: Path) -> None:
    code, run = train_alone(tiny_config(images, tmp_path, family_options={"faults": ["error:0:3"]}))
    assert code == 3
    assert "a mistake in the family's own code" in run.failure(0)
    assert "Traceback" in run.folder.log_file(0).read_text()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_broken_first_step_leaves_the_optimizer_fit_to_go_on(
    images: Path, tmp_path: Path, name: str, fused: bool
) -> None:
    optimizer = {"name": name, "fused": fused}
    code, run = train_alone(
        tiny_config(images, tmp_path, optimizer=optimizer, family_options={"faults": ["nan:0:1"]}, batch_size=8)
    )
    assert code == 0
    assert run.events("step")[0]["grad_norm"] is None
    assert all(math.isfinite(loss) for loss in run.losses[1:])
    assert min(run.losses[2:]) < run.losses[1]
    assert all(bool(tensor.isfinite().all()) for tensor in run.state.optimizer.tensors.values())
