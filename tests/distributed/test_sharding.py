"""Which parts of a model become units, and what cannot be divided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from modules.config import ConfigError, TrainConfig, resolve_config
from modules.distributed import Group, Place, check_unused, process_group, shard
from modules.distributed.sharding import separate
from tests.ports import free_port


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """A group of this process alone."""
    with process_group(Place(0, 0, 1, "127.0.0.1", free_port()), "gloo", 60) as group:
        yield group


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate({"training_mode": "fully_sharded", **settings})


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))


def test_inner_blocks_come_before_those_around_them() -> None:
    model = net()
    outer = model[1]
    assert isinstance(outer, nn.Sequential)
    assert separate(model, [outer, outer[0], model[0], model]) == [outer[0], outer, model[0]]


def test_a_block_that_shares_a_weight_with_another_part_is_left_to_what_surrounds_both() -> None:
    model = net()
    outer = model[1]
    assert isinstance(outer, nn.Sequential)
    outer[0].weight = outer[1].weight
    assert separate(model, [model[0], outer, outer[0], outer[1], model[2]]) == [model[2], outer, model[0]]
    model[2].weight = outer[1].weight
    assert separate(model, [model[0], outer, model[2]]) == [model[0]]


def test_a_single_number_cannot_be_divided(group: Group) -> None:
    model = net()
    model.register_parameter("gain", nn.Parameter(torch.ones(())))
    with pytest.raises(ConfigError, match="cannot divide the single number 'gain'"):
        shard(model, [], config(), group, None)


def test_the_opening_counts_what_is_kept(group: Group) -> None:
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 1024, bias=False))
    model[0].requires_grad_(False)
    weights = shard(model, list(model), config(), group, None)
    assert weights.count == 512 * 1024
    said = weights.opening()
    assert "3 units of at most 2.0 MiB" in said
    assert "3.0 of 3.0 MiB of weights and 2.0 of 2.0 MiB of gradients" in said


@pytest.mark.parametrize("kept", [True, False])
def test_weights_that_take_no_part_are_found(group: Group, kept: bool) -> None:
    model = net()
    model.append(nn.Linear(4, 4).requires_grad_(False))
    model.register_module("idle", nn.Linear(3, 3, bias=False))
    model.forward = lambda x: model[3](model[2](model[1](model[0](x))))  # type: ignore[method-assign]
    weights = shard(model, [model[0], model[1]], config(fsdp_reshard_after_forward=not kept), group, None)
    loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(ConfigError, match=r"1 of 9 trained weights took no part.*'idle.weight'"):
        check_unused(weights.leaves(), loss, config(), group.control)
    loss.backward()
    weights.take_gradients()
    assert {name for name, weight in weights.own.items() if weight.grad is None} == {"idle.weight"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer=prodigy", "optimizer is prodigy, which looks at whole matrices or at all weights at once"),
        ("optimizer=adafactor", "use adamw, adam, sgd or lion"),
        ("gradient_compression=fp16", "gradient_compression is fp16, which is for training_mode distributed"),
        ("channels_last=true", "channels_last is true; training_mode fully_sharded keeps weights flat"),
    ],
)
def test_what_would_give_another_result_is_refused(setting: str, said: str) -> None:
    assert resolve_config(None, [setting])
    with pytest.raises(ConfigError, match="fully_sharded") as refusal:
        resolve_config(None, [setting, "training_mode=fully_sharded"])
    assert said in str(refusal.value)


def test_batch_norm_is_shared_on_gpus_only(group: Group) -> None:
    with pytest.raises(ConfigError, match="sync_batch_norm is on"):
        shard(net(), [], config(sync_batch_norm=True), group, None)
