"""Which blocks become FSDP units, and what cannot be sharded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from modules.config import ConfigError, TrainConfig, resolve_config
from modules.distributed import Group, RankEnv, check_unused_parameters
from modules.distributed.fsdp import apply_fsdp, fsdp_units, shard_groups
from modules.distributed.process_group import process_group
from modules.distributed.rank_group import SingleProcess
from modules.distributed.startup.member import Member
from modules.training.loop.fully_sharded_trainer import FullyShardedTrainer
from tests.ports import free_port


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """A group of one process."""
    with process_group(RankEnv(0, 0, 1, "127.0.0.1", free_port()), "gloo", 60) as group:
        yield group


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate({"training_mode": "fully_sharded", **settings})


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))


def test_inner_blocks_come_before_those_around_them() -> None:
    model = net()
    outer = model[1]
    assert isinstance(outer, nn.Sequential)
    assert fsdp_units(model, [outer, outer[0], model[0], model]) == [outer[0], outer, model[0]]


def test_blocks_that_share_weights_are_left_to_their_parent() -> None:
    model = net()
    outer = model[1]
    assert isinstance(outer, nn.Sequential)
    outer[0].weight = outer[1].weight
    assert fsdp_units(model, [model[0], outer, outer[0], outer[1], model[2]]) == [model[2], outer, model[0]]
    model[2].weight = outer[1].weight
    assert fsdp_units(model, [model[0], outer, model[2]]) == [model[0]]


def test_a_scalar_cannot_be_sharded(group: Group) -> None:
    model = net()
    model.register_parameter("gain", nn.Parameter(torch.ones(())))
    with pytest.raises(ConfigError, match="cannot shard the scalar 'gain'"):
        apply_fsdp(model, [], config(), group, None)


def test_machines_that_replicate_each_other_are_of_one_size(group: Group) -> None:
    def groups(machines: list[int], node_ranks: Sequence[int | None], **settings: object) -> list[list[int]]:
        members = [
            Member(rank, 0, f"host{machine}", 1, node_rank, None, f"id{machine}")
            for rank, (machine, node_rank) in enumerate(zip(machines, node_ranks, strict=True))
        ]
        env = replace(group.rank_env, world_size=len(members))
        return shard_groups(config(**settings), replace(group, rank_env=env, members=tuple(members)))

    hybrid, unknown = {"fsdp_replicate": "machines"}, [None] * 4
    assert groups([0, 0, 1, 1], unknown) == [[0, 1, 2, 3]]
    assert groups([0, 1, 0, 1], unknown, **hybrid) == [[0, 2], [1, 3]]
    assert groups([0, 0, 0, 0], [0, 0, 1, 1], **hybrid) == [[0, 1], [2, 3]]  # two torchruns of one machine
    assert groups([0, 0, 1, 1], [0, 0, 0, 0], **hybrid) == [[0, 1], [2, 3]]  # mpirun in Slurm: each the node of a step
    with pytest.raises(ConfigError, match=r"ranks 0.*2 on host0 and rank 3 on host1\. .*processes_per_node"):
        groups([0, 0, 0, 1], unknown, **hybrid)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_micro_batches_are_not_added_up_in_bf16(group: Group, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    mesh = DeviceMesh("cpu", torch.tensor([[0]]), mesh_dim_names=("replica", "shard"))
    monkeypatch.setattr("modules.distributed.fsdp._mesh", lambda groups, group: mesh)
    trainer = object.__new__(FullyShardedTrainer)
    trainer.ranks, trainer.config = SingleProcess([]), config(fsdp_reduce_precision=precision)
    trainer.weights = apply_fsdp(nn.Linear(1, 1, bias=False), [], trainer.config, group, None)
    trainer.weights.replicas = 2  # as far as the trainer asks; each has the same
    for number, value in enumerate([256.0, 1.0, 1.0, 1.0], 1):  # 256 + 1 is 256 in bf16
        with trainer.no_sync(last=number == 4):
            trainer.weights.model(torch.full((1, 1), value)).sum().backward()
    trainer.weights.collect_gradients()
    gradient = trainer.weights.local["weight"].grad
    assert gradient is not None
    assert gradient.item() == 259


def test_the_summary_reports_the_memory_held(group: Group) -> None:
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 1024, bias=False))
    model[0].requires_grad_(False)
    weights = apply_fsdp(model, list(model), config(), group, None)
    assert weights.num_trainable == 512 * 1024
    summary = weights.summary()
    assert "3 units of at most 2.0 MiB" in summary
    assert "3.0 of 3.0 MiB of weights and 2.0 of 2.0 MiB of gradients" in summary


class _Block(nn.Module):
    """With layers in bf16, and a norm and a weight of its own in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(6), nn.Linear(6, 6).bfloat16()
        self.shift = nn.Parameter(torch.full((1, 6), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted: torch.Tensor = x + self.layer(self.norm(x).bfloat16() + self.shift.bfloat16()).float()
        return shifted


def test_weights_of_two_formats_in_a_unit(group: Group) -> None:
    torch.manual_seed(0)
    whole, model = (nn.Sequential(_Block(), _Block(), _Block()) for _ in range(2))
    model.load_state_dict(whole.state_dict())
    settings = {"stochastic_rounding": True, "precision": "bf16", "method": "fine_tune"}
    weights = apply_fsdp(model, [model[0], model[1]], config(**settings), group, None)
    for each in (whole, model):
        for _ in range(2):
            each(torch.linspace(-1, 1, 18).view(3, 6)).square().sum().backward()
    weights.collect_gradients()
    for name, weight in whole.named_parameters():
        gradient = weights.local[name].grad
        assert weight.grad is not None
        assert gradient is not None
        assert weight.dtype == gradient.dtype == weights.local[name].dtype
        assert torch.equal(weight.grad, gradient)


@pytest.mark.parametrize("kept", [True, False])
def test_unused_weights_are_found(group: Group, kept: bool) -> None:
    model = net()
    model.append(nn.Linear(4, 4).requires_grad_(False))
    model.register_module("idle", nn.Linear(3, 3, bias=False))
    model.forward = lambda x: model[3](model[2](model[1](model[0](x))))  # type: ignore[method-assign]
    weights = apply_fsdp(model, [model[0], model[1]], config(fsdp_reshard_after_forward=not kept), group, None)
    loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(ConfigError, match=r"1 of 9 trained weights did not contribute.*'idle.weight'"):
        check_unused_parameters(weights.leaf_tensors(), loss, config(), group.control)
    loss.backward()
    weights.collect_gradients()
    assert {name for name, weight in weights.local.items() if weight.grad is None} == {"idle.weight"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer=prodigy", "optimizer is prodigy, which works on whole matrices or on all weights at once"),
        ("optimizer=adafactor", "use one of adamw, schedule_free_adamw, adam, sgd, lion"),
        ("gradient_compression=fp16", "gradient_compression is fp16, which is for training_mode distributed"),
        ("channels_last=true", "channels_last is true; training_mode fully_sharded flattens weights"),
    ],
)
def test_settings_that_change_the_result_are_refused(setting: str, said: str) -> None:
    assert resolve_config(None, [setting])
    with pytest.raises(ConfigError, match="fully_sharded") as refusal:
        resolve_config(None, [setting, "training_mode=fully_sharded"])
    assert said in str(refusal.value)


def test_sync_batch_norm_needs_a_gpu(group: Group) -> None:
    with pytest.raises(ConfigError, match="sync_batch_norm is on"):
        apply_fsdp(net(), [], config(sync_batch_norm=True), group, None)
