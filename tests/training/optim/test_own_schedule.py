"""Schedulers of torch's kind: as in torch's own loop, from any step on, after a warm-up; refused if they fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from modules.config import ConfigError, TrainConfig, validate
from modules.config.schedules import own_scheduler_note
from modules.config.unused import unused_settings
from modules.training.optim.own_schedule import OwnSchedule, check_scheduler, scheduler_of

RATES = [0.1, 0.03]  # of two groups
STEPS = 23
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "steps": ("torch.optim.lr_scheduler.StepLR", {"step_size": 5, "gamma": 0.3}),
    "milestones": ("torch.optim.lr_scheduler.MultiStepLR", {"milestones": [3, 11]}),
    "restarts": ("torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", {"T_0": 6, "T_mult": 2, "eta_min": 1e-3}),
    "one cycle": ("torch.optim.lr_scheduler.OneCycleLR", {"max_lr": [0.3, 0.1], "total_steps": STEPS}),
    "cyclic": ("torch.optim.lr_scheduler.CyclicLR", {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 4}),
}


def optimizer() -> torch.optim.SGD:
    return torch.optim.SGD(
        [{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in RATES], momentum=0.9, lr=1.0
    )


def config_of(target: str, arguments: object) -> TrainConfig:
    return validate({"scheduler": {"name": "custom", "target": target, "arguments": arguments}}, "a test")


def settings(of: torch.optim.Optimizer) -> list[tuple[float, float]]:
    return [(group["lr"], group["momentum"]) for group in of.param_groups]


def in_torch(build: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]) -> list[list[tuple[float, float]]]:
    """The learning rates and momenta of each step of torch's own loop."""
    plain, found = optimizer(), []
    scheduler = build(plain)
    for _ in range(STEPS):
        found.append(settings(plain))
        plain.step()
        scheduler.step()
    return found


def in_sequence(of: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    parts = [lr_scheduler.LinearLR(of, 0.1, total_iters=4), lr_scheduler.ExponentialLR(of, 0.9)]
    return lr_scheduler.ChainedScheduler(parts)


@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize("name", [*CLASSES, "a function"])
def test_each_step_is_that_of_torchs_own_loop(name: str, first: int) -> None:
    """`first`: a resumed run begins in the middle."""
    if name == "a function":
        build: Any = scheduler_of(TrainConfig.model_validate({"scheduler": "custom"}), in_sequence)
        own: Any = in_sequence
    else:
        target, arguments = CLASSES[name]
        build = scheduler_of(config_of(target, arguments), None)
        own = partial(getattr(lr_scheduler, target.rpartition(".")[2]), **arguments)
    expected, trained = in_torch(own), optimizer()
    schedule = OwnSchedule(build, trained, RATES, 0)
    schedule.check(STEPS)
    for step in range(first, STEPS):
        share = schedule.apply(step)
        assert settings(trained) == expected[step]
        assert share == expected[step][0][0] / RATES[0]


def test_it_begins_after_the_warm_up_and_leaves_the_groups_their_state() -> None:
    trained = optimizer()
    trained.param_groups[0]["k"] = 3  # what some optimizers count there
    schedule = OwnSchedule(partial(lr_scheduler.StepLR, step_size=2, gamma=0.5), trained, RATES, 3)
    shares = [schedule.apply(step) for step in range(8)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.5, 0.5, 0.25])
    assert schedule.apply(1) == pytest.approx(0.5)
    assert trained.param_groups[0].keys() - optimizer().param_groups[0].keys() == {"k"}
    assert trained.param_groups[0]["k"] == 3


def test_one_that_counts_epochs_steps_after_each() -> None:
    build = partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)
    schedule = OwnSchedule(build, optimizer(), RATES, 0, interval_steps=3)
    assert [schedule.apply(step) for step in range(7)] == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25])
    schedule = OwnSchedule(build, optimizer(), RATES, 4, interval_steps=3)
    assert [schedule.apply(step) for step in range(3, 10)] == pytest.approx([0.8, 1, 1, 0.5, 0.5, 0.5, 0.25])
    limited = OwnSchedule(partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=2), optimizer(), RATES, 0, 3)
    limited.check(9)
    with pytest.raises(ConfigError, match="OneCycleLR fails at step 10: Tried to step 3 times"):
        limited.check(10)


@pytest.mark.parametrize(
    ("target", "arguments", "fault"),
    [
        ("torch.optim.lr_scheduler.ReduceLROnPlateau", {}, "needs metrics at each of its steps"),
        ("torch.optim.lr_scheduler.StepLr", {}, "Did you mean torch.optim.lr_scheduler.StepLR?"),
        ("torch.optim.lr_scheduler.StepLR", {"step": 2}, "It takes step_size, gamma"),
        ("torch.optim.Adam", {}, "has no scheduler Adam"),
        ("torch.optim.lr_scheduler.StepLR", {"last_epoch": 2}, "which Tandem gives itself"),
        ("torch.optim.lr_scheduler.StepLR", "5", "no list of NAME = VALUE"),
        ("os", {}, "give a scheduler's class with its module"),
        ("torch.nn.Linear", {}, "give a scheduler's class with its module"),
        ("os.system", {}, "os has no scheduler system"),
        ("no_such_package.Steps", {}, "there is no file of the module no_such_package"),
        ("", {"gamma": 0.1}, "names no class that takes it"),
        ("", {}, "the family brings no scheduler of its own"),
    ],
)
def test_what_is_no_scheduler_is_refused(target: str, arguments: object, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_scheduler(config_of(target, arguments), None, None)
    assert fault in str(caught.value)


def test_one_that_fails_later_is_refused_before_the_first_step() -> None:
    schedule = OwnSchedule(partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=5), optimizer(), RATES, 2)
    schedule.check(8)
    with pytest.raises(ConfigError, match="OneCycleLR fails at step 9: Tried to step 6 times"):
        schedule.check(9)
    with pytest.raises(ConfigError, match="gives the learning rate -0"):
        OwnSchedule(partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 - step), optimizer(), RATES, 0).check(9)
    with pytest.raises(ConfigError, match=r"returned None \(is a `return` missing\?\)"):
        OwnSchedule(lambda optimizer: None, optimizer(), RATES, 0)  # type: ignore[arg-type,return-value]


def test_a_name_alone_is_a_class() -> None:
    config = validate({"scheduler": "torch.optim.lr_scheduler.LinearLR"}, "a test")
    assert (config.scheduler, config.scheduler_target) == ("custom", "torch.optim.lr_scheduler.LinearLR")
    told = own_scheduler_note(config.model_copy(update={"warmup_steps": 3, "scheduler_arguments": "total_iters = 9"}))
    assert told == (
        "The learning rate after the warm-up follows the scheduler LinearLR(total_iters = 9), step by step of the "
        "optimizer."
    )
    assert validate({"scheduler": {"name": "linear"}}, "a test").scheduler == "linear"
    grouped = validate({"scheduler": {"target": "torch.optim.lr_scheduler.LinearLR", "interval": "epoch"}}, "a test")
    assert grouped.scheduler_interval == "epoch"
    assert own_scheduler_note(grouped).endswith("LinearLR, epoch by epoch.")
    assert own_scheduler_note(validate({"scheduler_interval": "epoch"}, "a test")) == ""


def test_neither_a_class_nor_arguments_are_ignored_in_silence() -> None:
    target = {"scheduler_target": "torch.optim.lr_scheduler.LinearLR"}
    assert validate(target, "a test").scheduler == "custom"
    assert unused_settings(validate({"scheduler": "cosine", **target}, "a test")) == [
        'scheduler_target has no effect: scheduler is "cosine".'
    ]
    with pytest.raises(ConfigError, match="scheduler_target names no class that takes it"):
        validate({"scheduler_arguments": {"step_size": 3}}, "a test")
