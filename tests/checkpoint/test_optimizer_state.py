"""Every optimizer's state survives the disk: the step after is the same to the last bit."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from modules.checkpoint import OptimizerState, pack_optimizer, unpack_optimizer
from modules.checkpoint.hashed_files import write_tensors
from modules.config import ResumeError, TrainConfig
from modules.config.sections.optimizers import OPTIMIZERS
from modules.distributed import Weights
from modules.training.optim.optimizers import GuardedStep, build_optimizer

NAMES = [name for name, kind in OPTIMIZERS.items() if kind.implementation]
# bitsandbytes is for those who install it
PRESENT = [n for n in NAMES if importlib.util.find_spec(OPTIMIZERS[n].implementation.partition(".")[0])]
FUSED = [{"name": name, "fused": True} for name in ("adamw", "adam", "sgd")]
WITH_MORE = [
    {"name": "adafactor", "beta1": 0.9},
    {"name": "custom", "target": "torch.optim.Adagrad", "arguments": "lr_decay = 0.1"},
    {"name": "custom", "target": "torch.optim.NAdam"},
    {"name": "sgd", "momentum": 0.0},
    {"name": "sgd", "nesterov": True},
]


def network(channels_last: bool = False) -> nn.Sequential:
    """A convolution and a matrix, alike at every call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 5), nn.LayerNorm(5))
    return model.to(memory_format=torch.channels_last) if channels_last else model  # type: ignore[call-overload]


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One step on a batch that depends on `seed`."""
    inputs = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def through_the_disk(state: OptimizerState, folder: Path) -> OptimizerState:
    write_tensors(folder / "o.safetensors", state.tensors)
    values, groups = json.loads(json.dumps([state.values, state.groups]))
    return OptimizerState(state.class_name, load_file(folder / "o.safetensors"), values, groups)


def names_of(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def config_of(optimizer: Mapping[str, object]) -> TrainConfig:
    rate = 1.0 if optimizer["name"] == "prodigy" else 0.01
    return TrainConfig.model_validate({"optimizer": optimizer, "learning_rate": rate})


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("settings", [*({"name": name} for name in PRESENT), *FUSED, *WITH_MORE], ids=str)
def test_the_step_after_a_restore_is_the_same(tmp_path: Path, settings: dict[str, object], channels_last: bool) -> None:
    config = config_of(settings)
    first = network(channels_last)
    optimizer = build_optimizer(first.parameters(), config)
    for seed in (1, 2):
        learn(first, optimizer, seed)
    state = through_the_disk(pack_optimizer(optimizer, names_of(first)), tmp_path)

    second = network(channels_last)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    fresh = build_optimizer(second.parameters(), config)
    unpack_optimizer(fresh, state, names_of(second), {"lr", *config.optimizer.keywords()})
    for seed in (3, 4):
        learn(first, optimizer, seed)
        learn(second, fresh, seed)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name


def test_every_optimizer_of_the_config_is_tried() -> None:
    assert set(NAMES) >= {"adamw", "adam", "sgd", "adafactor", "lion", "prodigy", "came", "adamw_8bit"}


@pytest.mark.parametrize("fused", [False, True])
def test_moments_keep_the_layout_of_their_weights(tmp_path: Path, fused: bool) -> None:
    config = config_of({"name": "adamw", "fused": fused})
    model = network(channels_last=True)
    optimizer = build_optimizer(model.parameters(), config)
    learn(model, optimizer, 1)
    state = through_the_disk(pack_optimizer(optimizer, names_of(model)), tmp_path)
    fresh = build_optimizer(model.parameters(), config)
    unpack_optimizer(fresh, state, names_of(model), set())
    weight: Any = model[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert fresh.state[weight]["exp_avg"].stride() == weight.stride()


@pytest.mark.parametrize("fused", [False, True])
def test_state_goes_to_the_device_of_the_weights(fused: bool) -> None:
    for settings in ({"name": "adamw", "fused": fused}, {"name": "adafactor"}):
        config, model = config_of(settings), network()
        optimizer = build_optimizer(model.parameters(), config)
        learn(model, optimizer, 1)
        state = pack_optimizer(optimizer, names_of(model))
        elsewhere = network().to("meta")
        fresh = build_optimizer(elsewhere.parameters(), config)
        unpack_optimizer(fresh, state, names_of(elsewhere), set())
        found = [(key, value) for row in fresh.state.values() for key, value in row.items() if torch.is_tensor(value)]
        assert {value.device.type for key, value in found if key != "step"} == {"meta"}
        steps = {value.device.type for key, value in found if key == "step"}
        assert steps <= {"meta" if fused else "cpu"}


def test_settings_of_the_present_config_win_over_the_saved_ones(tmp_path: Path) -> None:
    model = network()
    old = build_optimizer(model.parameters(), config_of({"name": "adamw", "weight_decay": 0.5}))
    learn(model, old, 1)
    state = through_the_disk(pack_optimizer(old, names_of(model)), tmp_path)
    config = config_of({"name": "adamw", "weight_decay": 0.1})
    new = build_optimizer(model.parameters(), config)
    unpack_optimizer(new, state, names_of(model), {"lr", *config.optimizer.keywords()})
    assert new.param_groups[0]["weight_decay"] == 0.1


def test_the_state_of_another_optimizer_is_refused() -> None:
    model = network()
    old = build_optimizer(model.parameters(), config_of({"name": "adamw"}))
    learn(model, old, 1)
    state = pack_optimizer(old, names_of(model))
    new = build_optimizer(model.parameters(), config_of({"name": "lion"}))
    with pytest.raises(ValueError, match="another optimizer, AdamW instead of Lion"):
        unpack_optimizer(new, state, names_of(model), set())


def test_state_that_would_need_pickle_is_refused() -> None:
    model = network()
    optimizer = build_optimizer(model.parameters(), config_of({"name": "sgd"}))
    optimizer.state[next(model.parameters())]["odd"] = object()
    with pytest.raises(TypeError, match="cannot be written without pickle"):
        pack_optimizer(optimizer, names_of(model))


def restored(change: str, value: torch.Tensor | str | None) -> GuardedStep:
    """A fused AdamW with a state from a backup in which one tensor, or one setting of the group, is another one."""
    model = network()
    config = TrainConfig.model_validate({"optimizer": {"name": "adamw", "fused": True}})
    optimizer = build_optimizer(model.parameters(), config)
    learn(model, optimizer, 1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = pack_optimizer(optimizer, names)
    tensors = {name: each for name, each in state.tensors.items() if name != change}
    groups = [{**group, change: value} for group in state.groups] if isinstance(value, str) else state.groups
    if isinstance(value, torch.Tensor):
        tensors[change] = value
    changed = OptimizerState(state.class_name, tensors, state.values, groups)
    unpack_optimizer(optimizer, changed, names, {"lr"})
    step = GuardedStep(optimizer, Weights(model), torch.amp.GradScaler("cpu", enabled=False), None)
    step.is_restored = True
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return step


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq", "step"])
def test_a_state_of_another_size_never_reaches_a_fused_kernel(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} of 0.weight has the shape"):
        restored(f"0.weight/{key}", torch.zeros(2))


@pytest.mark.parametrize(("change", "value"), [("0.weight/exp_avg", None), ("maximize", "x")])
def test_an_incomplete_state_from_a_backup_is_one_sentence(change: str, value: str | None) -> None:
    with pytest.raises(ResumeError, match="the optimizer cannot continue from the state in the backup"):
        restored(change, value).apply()


@pytest.mark.parametrize("place", ["norm", "step"])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"),
        dist.DistBackendError("a collective failed"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_faults_of_the_machine_in_the_first_step_stay_what_they_are(
    monkeypatch: pytest.MonkeyPatch, place: str, error: RuntimeError
) -> None:
    def fail(*_: object) -> Any:
        raise error

    step = restored("0.weight/exp_avg", torch.zeros(8, 3, 3, 3))
    if place == "norm":  # as the norm's sum over the shards of all ranks
        monkeypatch.setattr(Weights, "total_norm", fail)
    else:
        step.optimizer.register_step_pre_hook(fail)
    with pytest.raises(type(error)) as raised:
        step.apply()
    assert raised.value is error


def test_faults_of_later_steps_stay_what_they_are() -> None:
    step = restored("0.weight/exp_avg", torch.zeros(8, 3, 3, 3))
    step.apply()
    step.optimizer.param_groups[0]["params"][0].grad = torch.ones(8, 3, 3, 3)
    step.optimizer.state[step.optimizer.param_groups[0]["params"][0]].pop("exp_avg")
    with pytest.raises(KeyError):
        step.apply()
