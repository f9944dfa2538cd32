"""Benchmark and search of the batch size on machines over ssh: what these are told, and what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.run.batch_size.records import SearchRequest
from modules.run.benchmark.records import BenchmarkRequest
from modules.run.hosts.host import Host
from modules.run.hosts.measuring import machines_text, on_machines, own_place, passed_on
from modules.run.hosts.ssh_command import ssh_argv


def test_the_request_is_passed_on_to_the_other_machines() -> None:
    request = BenchmarkRequest(steps=3, warm_up=1)
    told = passed_on({**request.environment(), "SECRET": "x"})
    assert told == request.environment()
    command = ssh_argv(Host.make("beta", "beta", "~/tandem"), ["scripts/train.py"], told)[-1]
    assert "export TANDEM_BENCHMARK=" in command
    assert BenchmarkRequest.from_environment(told) == request


def test_a_machine_that_only_measures_leaves_nothing() -> None:
    with own_place({}) as own:
        assert own == [], "a run keeps its folders"
    with own_place(BenchmarkRequest().environment()) as own:
        (setting,) = own
        assert setting.startswith("runs_dir=")
        folder = Path(setting.partition("=")[2])
        folder.mkdir()
    assert not folder.parent.exists()
    with own_place(SearchRequest().environment()) as own:
        assert [each.partition("=")[0] for each in own] == ["runs_dir", "cache_dir"], "its few images are no cache"


@pytest.mark.parametrize(
    ("settings", "alone", "two"),
    [
        ({"processes_per_node": [4, 2, 1]}, 4, (4, 2)),
        ({"processes_per_node": [2]}, 2, (2, 2)),
        ({"world_size": 6}, 2, (2, 2)),
        ({}, None, None),
    ],
)
def test_some_of_the_machines(settings: dict[str, object], alone: int | None, two: tuple[int, ...] | None) -> None:
    config = TrainConfig.model_validate({"num_nodes": 3, "enable_multi_gpu": True, **settings})
    one, both = on_machines(config, 1), on_machines(config, 2)
    assert (one.num_nodes, one.world_size, one.processes_per_node) == (1, alone, None)
    assert (both.num_nodes, both.world_size, both.processes_per_node) == (2, None, two)
    assert "only this machine can be measured, not the other 2 of num_nodes=3" in machines_text(0, 3)
    assert "not the other one of" in machines_text(1, 3)
    assert machines_text(2, 3) == machines_text(0, 1) == ""
