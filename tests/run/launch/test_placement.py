"""Mode and process counts for a config and the GPUs of a machine."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run.launch.placement import choose_placement

MULTI = {"enable_multi_gpu": True}


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate(settings)


def test_balance_has_a_number_for_each_rank() -> None:
    with pytest.raises(
        ConfigError, match=r"balance is \[2, 1\], 2 numbers, but the run has 4 ranks\. .*\[4, 3, 2, 1\]"
    ):
        choose_placement(config(balance=[2, 1], **MULTI), gpus=4, cores=8)


@pytest.mark.parametrize(
    ("gpu_count", "settings", "mode", "processes", "reason"),
    [
        (0, {}, "single", 1, ""),
        (1, {}, "single", 1, ""),
        (4, {}, "single", 1, ""),
        (4, {"world_size": 4}, "single", 1, "enable_multi_gpu is off"),
        (4, {"training_mode": "single", **MULTI}, "single", 1, ""),
        (0, MULTI, "single", 1, "no GPU was found"),
        (1, MULTI, "single", 1, "one GPU was found"),
        (4, MULTI, "distributed", 4, ""),
        (4, {"world_size": 2, **MULTI}, "distributed", 2, ""),
        (2, {"balance": [2, 1], **MULTI}, "distributed", 2, ""),
        (4, {"balance": "auto"}, "single", 1, "balance=auto has no effect: there is one process"),
        (4, {"world_size": 1, **MULTI}, "single", 1, "world_size=1"),
        (0, {"world_size": 2, **MULTI}, "distributed", 2, ""),
        (0, {"training_mode": "distributed", "world_size": 2}, "distributed", 2, "enable_multi_gpu=false"),
        (1, {"training_mode": "distributed", "world_size": 1}, "distributed", 1, "enable_multi_gpu=false"),
        (1, {"training_mode": "distributed"}, "single", 1, "one GPU was found"),
        (4, {"training_mode": "fully_sharded"}, "fully_sharded", 4, "enable_multi_gpu=false"),
        (4, {"training_mode": "data_parallel", **MULTI}, "data_parallel", 1, ""),
        (4, {"training_mode": "data_parallel"}, "data_parallel", 1, "enable_multi_gpu=false"),
        (1, {"training_mode": "data_parallel"}, "single", 1, "data_parallel needs two"),
        (4, {"processes_per_node": [2], **MULTI}, "distributed", 2, ""),
        (4, {"processes_per_node": [1], **MULTI}, "single", 1, "processes_per_node=[1]"),
        (1, {"training_mode": "distributed", "processes_per_node": [1]}, "distributed", 1, "enable_multi_gpu=false"),
    ],
)
def test_placement(gpu_count: int, settings: dict[str, object], mode: str, processes: int, reason: str) -> None:
    found = choose_placement(config(**settings), gpus=gpu_count, cores=2)
    assert (found.mode, found.process_counts) == (mode, (processes,))
    assert bool(found.reasons) == bool(reason)
    assert reason in " ".join(found.reasons)


@pytest.mark.parametrize(
    ("gpu_count", "settings", "counts"),
    [
        (2, {}, (2, None)),
        (0, {}, (1, None)),
        (2, {"node_rank": 1}, (None, 2)),
        (4, {"world_size": 4}, (2, 2)),
        (4, {"processes_per_node": [1, 3]}, (1, 3)),
        (4, {"processes_per_node": [1, 3], "node_rank": 1, "world_size": 4}, (1, 3)),
        (4, {"processes_per_node": [3]}, (3, 3)),
        (1, {"processes_per_node": [1]}, (1, 1)),
    ],
)
def test_placement_on_two_machines(gpu_count: int, settings: dict[str, object], counts: tuple[int | None, ...]) -> None:
    found = choose_placement(config(num_nodes=2, **settings, **MULTI), gpus=gpu_count, cores=2)
    assert (found.mode, found.process_counts, found.reasons) == ("distributed", counts, ())


@pytest.mark.parametrize(
    ("gpu_count", "settings", "sentence"),
    [
        (2, {"world_size": 3, **MULTI}, "world_size is 3, .*2 GPUs were found; use at most 2"),
        (2, {"world_size": 8, "num_nodes": 2, **MULTI}, "4 processes on each machine, .*use at most 4"),
        (0, {"world_size": 17, **MULTI}, "8 processes per core.*use at most 16"),
        (2, {"world_size": 3, "num_nodes": 2, **MULTI}, "does not divide evenly by num_nodes=2"),
        (2, {"processes_per_node": [4, 1], "num_nodes": 2, **MULTI}, "4 processes on machine 0.*use at most 2"),
        (2, {"processes_per_node": [4, 3], "num_nodes": 2, "node_rank": 1, **MULTI}, "3 processes on machine 1"),
        (2, {"num_nodes": 2}, "num_nodes is 2, but one process.*--multi_gpu"),
    ],
)
def test_impossible_placements(gpu_count: int, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        choose_placement(config(**settings), gpus=gpu_count, cores=2)


@pytest.mark.parametrize("settings", [MULTI, {"training_mode": "data_parallel"}, {"training_mode": "single"}])
def test_require_multi_gpu(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="--require_multi_gpu") as refused:
        choose_placement(config(**settings), gpus=1, cores=2, require_multi_gpu=True)
    assert "training on one device" not in str(refused.value)
    assert str(refused.value).count("several GPUs") == 1
