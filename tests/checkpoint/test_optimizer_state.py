"""Every optimizer's state survives the disk: the step after is the same to the last bit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from modules.checkpoint import OptimizerState, pack_optimizer, unpack_optimizer
from modules.checkpoint.backups import write_tensors
from modules.config import TrainConfig
from modules.config.sections.optimizers import OPTIMIZERS
from modules.training.optimizers import build_optimizer

NAMES = list(OPTIMIZERS)
# bitsandbytes is for those who install it
PRESENT = [n for n, k in OPTIMIZERS.items() if importlib.util.find_spec(k.target.partition(".")[0])]
FUSED = [{"name": name, "fused": True} for name in ("adamw", "adam", "sgd")]
WITH_MORE = [
    {"name": "adafactor", "beta1": 0.9},
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


def config_of(optimizer: dict[str, object]) -> TrainConfig:
    rate = 1.0 if optimizer["name"] == "prodigy" else 0.01
    return TrainConfig.model_validate({"optimizer": optimizer, "learning_rate": rate})


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("settings", [{"name": name} for name in PRESENT] + FUSED + WITH_MORE, ids=str)
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
    unpack_optimizer(fresh, state, names_of(second), {"lr", *config.optimizer.arguments()})
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
    weight = model[0].weight
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
    unpack_optimizer(new, state, names_of(model), {"lr", *config.optimizer.arguments()})
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
    optimizer.state[model[0].weight]["odd"] = object()
    with pytest.raises(TypeError, match="cannot be written without pickle"):
        pack_optimizer(optimizer, names_of(model))
