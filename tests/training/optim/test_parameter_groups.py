"""Weight decay without norms and biases, learning rates by layer, and an average that knows the batch size."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from modules.checkpoint import TrainingState, read_backup
from modules.config import ConfigError, Interval, TrainConfig, validate
from modules.distributed import Weights
from modules.training.methods.submodules import SubmoduleGroup
from modules.training.optim.ema import decay_for_batch
from modules.training.optim.optimizers import build_optimizer, set_learning_rate
from modules.training.optim.parameter_groups import parameter_groups, without_decay
from tests.runs import Run, same_state, tiny_config, train_alone

DIVIDED: dict[str, object] = {
    "decay_norms_and_biases": False,
    "learning_rate_factors": "first = 0.5",
    "ema": True,
    "ema_decay": 0.5,
    "ema_reference_batch_size": 4,
}


class Net(nn.Module):
    """A stem, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 2)


def stepped(gradient: float, **settings: object) -> dict[str, float]:
    """How far each weight of a Net of ones moves down in one step with a learning rate of 1; the head's is 2."""
    config = TrainConfig.model_validate(settings)
    model = Net()
    for weight in model.parameters():
        nn.init.ones_(weight)
        weight.grad = torch.full_like(weight, gradient)
    weights = Weights(model)
    parts = [
        SubmoduleGroup("body", tuple(name for name in weights.local if "head" not in name), 1.0, Interval.never()),
        SubmoduleGroup("head", ("head.weight", "head.bias"), 2.0, Interval.never()),
    ]
    groups = parameter_groups(parts, weights.shapes, config)
    optimizer = build_optimizer([group.for_optimizer(weights.local) for group in groups], config)
    set_learning_rate(optimizer, 1.0, [group.learning_rate_factor for group in groups])
    optimizer.step()
    return {name: 1 - round(weight.mean().item(), 5) for name, weight in weights.local.items()}


SGD = {"optimizer": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.25, "fused": False}}
MATRICES = {"stem.weight", "head.weight"}


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "prodigy", "came"])
def test_norms_and_biases_are_left_out_of_weight_decay(name: str) -> None:
    """Without a gradient only weight decay moves a weight."""
    optimizer = {"name": name, "weight_decay": 0.25, **({"d0": 1.0} if name == "prodigy" else {})}
    gradient = 1e-30 if name == "prodigy" else 0.0  # without any, prodigy does nothing
    everywhere = stepped(gradient, optimizer=optimizer)
    assert all(moved > 0.2 for moved in everywhere.values()), everywhere
    selected = stepped(gradient, optimizer=optimizer, decay_norms_and_biases=False)
    assert {weight for weight, moved in selected.items() if moved > 0.2} == MATRICES


class Tokens(nn.Module):
    """A model that names the weights to be left out of weight decay, as timm's do."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.ones(1, 4, 3))
        self.bias_tables = nn.ParameterList([nn.Parameter(torch.ones(4, 3)) for _ in range(2)])
        self.head = nn.Linear(3, 2, bias=False)

    def no_weight_decay(self) -> set[str]:
        return {"place", "bias_tables.*"}


@pytest.mark.parametrize("prefix", ["", "network."])
def test_what_the_model_names_is_left_out_of_weight_decay(prefix: str) -> None:
    model = nn.ModuleDict({"network": Tokens()}) if prefix else Tokens()
    weights = Weights(model)
    whole = [SubmoduleGroup("model", tuple(weights.local), 1.0, Interval.never())]
    config = TrainConfig.model_validate({"decay_norms_and_biases": False})
    groups = parameter_groups(whole, weights.shapes, config, without_decay(model))
    decayed = {name: group.has_weight_decay for group in groups for name in group.weights}
    names = {f"{prefix}{name}": name == "head.weight" for name, _ in Tokens().named_parameters()}
    assert decayed == names
    kept = parameter_groups(whole, weights.shapes, TrainConfig(), without_decay(model))
    assert all(group.has_weight_decay for group in kept)


def test_factors_multiply_the_learning_rate_of_the_run_and_of_the_submodule() -> None:
    settings = {"optimizer": {**SGD["optimizer"], "weight_decay": 0.0}}
    assert stepped(0.1, **settings) == pytest.approx(
        dict.fromkeys(["stem.weight", "stem.bias", "norm.weight", "norm.bias"], 0.1)
        | dict.fromkeys(["head.weight", "head.bias"], 0.2),
        abs=1e-5,
    )
    moved = stepped(0.1, **settings, learning_rate_factors=r"weight$ = 0.5, head = 3, stem\.bias = 0.1")
    expected = {
        "stem.weight": 0.05,
        "stem.bias": 0.01,
        "norm.weight": 0.05,
        "norm.bias": 0.1,
        "head.weight": 0.1,
        "head.bias": 0.6,
    }
    assert moved == pytest.approx(expected, abs=1e-5)
    both = stepped(0.1, **SGD, learning_rate_factors="weight$ = 0.5", decay_norms_and_biases=False)
    assert both["stem.weight"] == pytest.approx(0.5 * (0.1 + 0.25), abs=1e-5)
    assert both["norm.weight"] == pytest.approx(0.5 * 0.1, abs=1e-5)


def test_a_pattern_that_selects_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'haed' matches none of the 6 weights .* close to it are head\.weight"):
        stepped(0.1, learning_rate_factors="haed = 2")
    with pytest.raises(ConfigError, match=r"'xyz' .* some of them are stem\.weight, norm\.weight, head\.weight"):
        stepped(0.1, learning_rate_factors="xyz = 2")
    with pytest.raises(ConfigError, match=r"all weights that 'head' matches .* such as head\.weight by 'h'"):
        stepped(0.1, learning_rate_factors="h = 2, head = 3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("head", "'head' is no PATTERN = FACTOR"),
        ("head = big", "'head = big' is no PATTERN = FACTOR"),
        ("= 2", "'= 2' is no PATTERN = FACTOR"),
        ("a = 1, [ = 2", r"'\[' is not a valid regular expression"),
        ("head = 0", "a factor above 0 and up to 10000"),
        ("head = nan", "a factor above 0 and up to 10000"),
    ],
)
def test_what_is_no_list_of_factors_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate({"learning_rate_factors": text}, "the test")


def test_factors_may_be_a_list_of_groups() -> None:
    given = [{"pattern": "a{1,2}", "factor": 0.5}, {"pattern": "b", "factor": 2}]
    assert TrainConfig.model_validate({"learning_rate_factors": given}).learning_rate_factors == "a{1,2} = 0.5, b = 2"


def test_the_foreach_step_can_be_switched_off() -> None:
    def found(**settings: object) -> object:
        config = TrainConfig.model_validate({"optimizer": {"name": "adamw", **settings}})
        return build_optimizer([nn.Parameter(torch.ones(1))], config).param_groups[0]["foreach"]

    assert found() is None
    assert found(fused=False) is None
    assert found(fused=False, foreach=False) is False


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_fused_step_is_one_operation(name: str) -> None:
    def operations(fused: bool) -> set[str]:
        config = TrainConfig.model_validate({"optimizer": {"name": name, "fused": fused}})
        weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        for weight in weights:
            weight.grad = torch.ones(2)
        optimizer = build_optimizer(weights, config)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.step()
        return {event.key for event in profile.key_averages()}

    assert f"aten::_fused_{name}_" in operations(fused=True)
    assert not any("_fused_" in each for each in operations(fused=False))


@pytest.fixture(scope="module")
def divided(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = tiny_config(images, tmp_path_factory.mktemp("divided"), **DIVIDED, backup_every="1 step", backups_kept=9)
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    return run


def test_the_average_is_corrected_for_the_batch_size(divided: Run) -> None:
    """Twice the batch of which the decay 0.5 speaks: 0.25 per step, and (1 + step) / (10 + step) before."""
    assert decay_for_batch(0.9, 64, 32) == pytest.approx(0.81)
    assert decay_for_batch(0.9, 64, None) == 0.9
    states = [backup_at(divided, step) for step in range(1, 7)]
    for step, (before, after) in enumerate(pairwise(states), 2):
        assert before.ema is not None
        assert after.ema is not None
        decay = min(0.25, (1 + step) / (10 + step))
        for name, average in before.ema.items():
            expected = torch.lerp(average, after.weights[name], 1 - decay)
            torch.testing.assert_close(after.ema[name], expected)


def backup_at(run: Run, step: int) -> TrainingState:
    return read_backup(run.folder.backup_dir / f"step-{step:06d}")


def test_a_divided_run_resumes_in_the_same_bits(images: Path, tmp_path: Path, divided: Run) -> None:
    train_alone(tiny_config(images, tmp_path, **DIVIDED, max_steps=3))
    code, resumed = train_alone(tiny_config(images, tmp_path, **DIVIDED), "latest")
    assert code == 0
    assert same_state(resumed.state, divided.state)
    assert len(resumed.state.optimizer.groups) == 4


@pytest.mark.parametrize("optimizer", ["adamw", "prodigy"])
def test_a_run_can_be_divided_when_it_is_resumed(images: Path, tmp_path: Path, optimizer: str) -> None:
    """With a factor of 1 and no weight decay, nothing but the groups differs."""
    settings = {"optimizer": {"name": optimizer, "weight_decay": 0.0}, "learning_rate": 0.01}
    more = {"decay_norms_and_biases": False, "learning_rate_factors": "first = 1"}
    train_alone(tiny_config(images, tmp_path, **settings, max_steps=3))
    shutil.copytree(tmp_path / "runs" / "x", tmp_path / "again" / "x")
    _, whole = train_alone(tiny_config(images, tmp_path, **settings), "latest")
    again = {**settings, "runs_dir": str(tmp_path / "again")}
    code, run = train_alone(tiny_config(images, tmp_path, **again, **more), "latest")
    assert code == 0, run.failure(0)
    assert "decay_norms_and_biases true -> false" in run.warnings
    for name, weight in whole.state.weights.items():
        torch.testing.assert_close(run.state.weights[name], weight)
    assert len(run.state.optimizer.groups) == 4
    code, back = train_alone(tiny_config(images, tmp_path, **again, max_steps=8), "latest")
    assert code == 0, back.failure(0)
    assert len(back.state.optimizer.groups) == 1
