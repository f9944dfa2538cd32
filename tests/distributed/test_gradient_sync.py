"""Adapters in one bucket, gradient compression and unused weights, in runs of two real ranks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.distributed.unused_parameters import reachable_leaves
from modules.run import root_cause
from modules.training.studies.parity import loss_difference, weight_difference
from tests.distributed import gradient_sync_programs
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

pytestmark = pytest.mark.slow

GRADIENTS = str(ROOT / "tests" / "gradient_family.py")
ADAPTERS = str(ROOT / "tests" / "adapter_family.py")
EXACT: dict[str, object] = {"precision": "fp64", "max_steps": 20}
LOW_RANK: dict[str, object] = {"gradient_compression": "powersgd", "powersgd_start_step": 2, "powersgd_rank": 1}
INTERRUPTED: dict[str, object] = {
    **LOW_RANK,
    "family_options": {"dropout": 0.2},
    "backup_every": "4 steps",
    "backups_kept": 99,
    "max_steps": 10,
}


def adapters(settings: dict[str, object], **options: object) -> dict[str, object]:
    return {"family": ADAPTERS, "family_options": options, **settings}


ACCUMULATED: dict[str, object] = {"family": GRADIENTS, "batch_size": 1, "gradient_accumulation_steps": 4}
# by the width of the network, which names the recordings
VIEWS: dict[int, dict[str, object]] = {
    7: {},
    8: {"gradient_compression": "powersgd", "powersgd_start_step": 2},
    9: {"gradient_as_bucket_view": False},
    10: {"find_unused_parameters": True},
}

JOBS: dict[str, dict[str, object]] = {
    "exact": adapters(EXACT),
    "accumulated": adapters({**EXACT, "batch_size": 2, "gradient_accumulation_steps": 3}),
    "not views": adapters({**EXACT, "gradient_as_bucket_view": False, "static_graph": True}),
    "different weights": adapters(EXACT, differs=True),
    "plain": {},
    "powersgd": LOW_RANK,
    "powersgd, nan once": {**LOW_RANK, "max_steps": 8, "family_options": {"faults": ["nan:1:4"]}},
    "powersgd, later": {**LOW_RANK, "powersgd_start_step": 100},
    "powersgd, a scalar": adapters(LOW_RANK, scalar=True),
    "uninterrupted": INTERRUPTED,
    "interrupted": {**INTERRUPTED, "max_steps": 4},
    "always": adapters({}, idle="always"),
    "on one rank": adapters({}, idle="rank 1"),
    "later": adapters({}, idle="from 6"),
    "always, find_unused": adapters({"find_unused_parameters": True}, idle="always"),
    "on one rank, find_unused": adapters({"find_unused_parameters": True}, idle="rank 1"),
    "never, find_unused": adapters({"find_unused_parameters": True}),
    "always, static": adapters({"static_graph": True}, idle="always"),
    "later, static": adapters({"static_graph": True}, idle="from 6"),
    "until later, static": adapters({"static_graph": True}, idle="until 6"),
}


class Found(NamedTuple):
    """What the two ranks left behind, and the results of `traffic_programs`."""

    runs: dict[str, Run]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def found(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    place = tmp_path_factory.mktemp("reductions")
    views = {
        f"views {width}": {
            **ACCUMULATED,
            **settings,
            "family_options": {"width": width, "record_gradients": str(place), "faults": ["nan:1:10"]},
        }
        for width, settings in VIEWS.items()
    }
    common = {**group_settings(2), "startup_timeout_s": 90, "step_timeout_s": 60}
    configs = {
        name: tiny_config(images, place, **{**common, "run_name": f"job-{number}", **settings})
        for number, (name, settings) in enumerate({**JOBS, **views}.items())
    }
    jobs = {name: Job(config) for name, config in configs.items()}
    jobs["resumed"] = Job(configs["interrupted"].model_copy(update={"max_steps": 10}), "latest")
    runs = train_group(2, jobs, partial(gradient_sync_programs.run_all, folder=place))
    results = json.loads((place / "found.json").read_text())
    for width in VIEWS:
        lines = (place / f"{width}-0.jsonl").read_text().splitlines()
        results[f"gradients {width}"] = [json.loads(line) for line in lines]
    return Found(runs, results)


# Adapters


def test_adapters_use_one_bucket_and_full_models_several(found: Found) -> None:
    assert found.results["adapters tensors"] == 720
    assert found.results["adapters buckets"] == 1
    assert found.results["everything buckets"] > 1
    assert found.results["everything in low ranks buckets"] == 1  # with several, torch's PowerSGD hangs on gloo


def test_all_ranks_start_with_rank_0s_weights(found: Found) -> None:
    assert found.results["adapters same"]
    assert found.results["everything same"]
    assert same_state(found.runs["exact"].state, found.runs["different weights"].state)


def test_only_equal_weights_count_as_equal(found: Found) -> None:
    differing = {name: same for name, same in found.results.items() if name.startswith("same: ")}
    assert [name for name, same in differing.items() if same] == ["same: equal"]
    assert len(differing) == 5


@pytest.mark.parametrize("name", ["exact", "accumulated", "not views"])
def test_two_ranks_train_adapters_like_one(images: Path, tmp_path: Path, found: Found, name: str) -> None:
    code, one = train_alone(tiny_config(images, tmp_path, **JOBS["exact"]))
    assert code == 0
    assert loss_difference(one.losses, found.runs[name].losses) <= 1e-9
    assert weight_difference(one.state, found.runs[name].state) <= 1e-9


# Gradients as views into the buckets


@pytest.mark.parametrize("width", [7, 8])
def test_gradients_stay_in_the_buckets_memory(found: Found, width: int) -> None:
    run, (warm_up, *steps) = found.runs[f"views {width}"], found.results[f"gradients {width}"]
    assert run.exit_code == 0
    assert run.warnings.count("the gradient is not finite") == 1
    assert warm_up == [None] * 4
    assert len(steps) == 21  # micro-batches: four in each of six steps, but for the last one of 41 samples
    assert all(gradients == steps[0] for gradients in steps)
    memory = dict(steps[0])
    weights = width * 4 * 9 + width + 3 * width * 9 + 3
    assert sum(memory.values()) == 4 * weights


@pytest.mark.parametrize("width", [9, 10])
def test_other_gradients_are_freed_after_each_step(found: Found, width: int) -> None:
    warm_up, *micro_batches = found.results[f"gradients {width}"]
    assert warm_up == micro_batches[0] == [None] * 4
    assert micro_batches.count([None] * 4) == 6  # the first one of each step


# Compression


def test_compressed_gradients_are_the_same_on_both_ranks(found: Found) -> None:
    assert all(found.results[f"{name} same"] for name in ("none", "fp16", "bf16", "powersgd"))


def test_rounding_error_of_each_compression(found: Found) -> None:
    assert found.results["none differs by"] < 1e-6
    assert 1e-5 < found.results["fp16 differs by"] < 1e-3
    assert 1e-4 < found.results["bf16 differs by"] < 1e-2
    assert found.results["powersgd differs by"] > 0.1
    assert found.results["powersgd rank"] == 1
    assert found.results["none rank"] == 32


def test_powersgd_is_exact_before_its_start_step(found: Found) -> None:
    assert same_state(found.runs["powersgd, later"].state, found.runs["plain"].state)
    assert found.runs["powersgd"].losses[:2] == found.runs["plain"].losses[:2]
    assert found.runs["powersgd"].losses[2:] != found.runs["plain"].losses[2:]
    assert found.runs["powersgd"].losses[-1] < found.runs["powersgd"].losses[0]


def test_powersgd_survives_a_non_finite_gradient(found: Found) -> None:
    assert found.results["powersgd finite"] == [True, False, True]
    run = found.runs["powersgd, nan once"]
    assert run.exit_code == 0
    assert run.warnings.count("the gradient is not finite") == 1
    assert run.losses[-1] < run.losses[0]


def test_powersgd_resumes_bit_exactly(found: Found) -> None:
    assert found.runs["resumed"].state.position.step == 10
    assert same_state(found.runs["resumed"].state, found.runs["uninterrupted"].state)
    assert found.runs["resumed"].losses == found.runs["uninterrupted"].losses


def test_powersgd_refuses_scalars_by_name(found: Found) -> None:
    message = cause(found.runs["powersgd, a scalar"])
    assert message.startswith("gradient_compression is 'powersgd', which cannot compress the scalar 'scale'")


# A backward that fails on one rank


@pytest.mark.parametrize("name", gradient_sync_programs.INTERRUPTED)
def test_a_backward_that_fails_on_one_rank_makes_all_gradients_nan(found: Found, name: str) -> None:
    finite, equal = zip(*found.results[f"interrupted, {name}"], strict=True)
    assert finite == (True, True, False, True, False, False, True)
    assert all(equal)


def test_buffers_follow_the_mean_of_the_ranks_changes(found: Found) -> None:
    # 1 + (1 + 2) / 2; the second rank's counter and flag do not count
    assert found.results["buffers"] == {
        "mean": [2.5],
        "constant": [float(torch.tensor(1.1))],
        "counter": [8],
        "flag": [1],
    }


# Unused weights


def test_unused_weights_are_named_before_the_first_step(found: Found) -> None:
    run = found.runs["always"]
    assert group_exit_codes(run, 2) == [2, 2]
    assert not run.events("step")
    assert cause(run).startswith(
        "4 of 24 trained weights did not contribute to the first step's loss: 'adapters.10.down'"
    )
    assert "set find_unused_parameters=true" in cause(run)


def test_a_weight_unused_on_one_rank_does_not_hang(found: Found) -> None:
    run = found.runs["on one rank"]
    assert group_exit_codes(run, 2) == [2, 2]
    assert (
        "did not contribute to the first step's loss (4 of them on some processes only): 'adapters.10.down'"
        in cause(run)
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("later", "A step did not use all trained weights: 4 of 24 were not used ('adapters.10.down', "),
        (
            "later, static",
            "static_graph is on, but a step used different weights from the first: 4 of 24",
        ),
        ("until later, static", "static_graph is on, but a step used different weights from the first"),
    ],
)
def test_weights_unused_in_later_steps_are_named(found: Found, name: str, said: str) -> None:
    assert group_exit_codes(found.runs[name], 2) == [3, 3]
    assert len(found.runs[name].events("step")) >= 1
    assert said in cause(found.runs[name])


@pytest.mark.parametrize("name", ["always, find_unused", "always, static"])
def test_permitted_unused_weights_train_like_one_rank(images: Path, tmp_path: Path, found: Found, name: str) -> None:
    _, one = train_alone(tiny_config(images, tmp_path, **adapters({}, idle="always")))
    assert found.runs[name].exit_code == 0
    assert weight_difference(one.state, found.runs[name].state) <= 1e-5
    assert "find_unused_parameters" not in found.runs[name].warnings


def test_weights_used_on_some_ranks_train_if_permitted(found: Found) -> None:
    assert found.runs["on one rank, find_unused"].exit_code == 0
    assert found.runs["on one rank, find_unused"].warnings == ""


def test_needless_find_unused_parameters_gives_a_warning(found: Found) -> None:
    run = found.runs["never, find_unused"]
    assert run.exit_code == 0
    assert "find_unused_parameters is on, but every trained weight was used" in run.warnings


def test_invisible_parts_of_the_graph_are_not_unused() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    assert reachable_leaves(layer(x).sum()) == {id(layer.weight), id(layer.bias), id(x)}
    assert reachable_leaves(checkpoint(layer, x, use_reentrant=True).sum()) is None
    assert reachable_leaves(torch.ones(())) == set()


def cause(run: Run) -> str:
    """The reported cause of a failed run."""
    failure = root_cause(run.folder)
    assert failure is not None
    return f"{failure.message} {failure.advice}"
