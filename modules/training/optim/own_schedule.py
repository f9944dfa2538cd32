"""A learning-rate schedule of torch's kind: a class that the config names, or what the user's own code builds."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config import ConfigError, TrainConfig
from modules.config.keywords import parse_keywords
from modules.config.own_builders import beside_own
from modules.facts import PROGRAM
from modules.training.optim.named_class import named_class
from modules.training.optim.optimizers import OwnOptimizer, build_optimizer

OwnScheduler: TypeAlias = Callable[[Optimizer], LRScheduler]
_CHECKED_STEPS: Final = 100_000  # of a run before its first step: they take a few seconds


def scheduler_of(config: TrainConfig, own: OwnScheduler | None) -> OwnScheduler | None:
    """What builds the scheduler: the class that the config names, or `own`, what the family builds itself, if it does;
    None for a schedule of Tandem's. Raises ConfigError if the class cannot be used."""
    is_own = config.scheduler == "custom" and not config.scheduler_target
    if is_own and own is None:
        raise ConfigError(
            "scheduler is custom without a target, and the family brings no scheduler of its own",
            "Set scheduler_target=torch.optim.lr_scheduler.StepLR, or define build_scheduler in the family's own file",
        )
    if not is_own and own is not None:
        raise beside_own(config, "build_scheduler")
    if config.scheduler != "custom":
        return None
    return own or partial(_of_class, config)


def name_of_builder(config: TrainConfig) -> str:
    """What builds a scheduler of the user's own, as the user wrote it."""
    return "scheduler" if config.family == PROGRAM else "build_scheduler"


def check_scheduler(config: TrainConfig, own: OwnScheduler | None, own_optimizer: OwnOptimizer | None) -> None:
    """Raises ConfigError if the scheduler cannot be built."""
    if (build := scheduler_of(config, own)) is not None:
        optimizer = build_optimizer([nn.Parameter(torch.zeros(2, 2))], config, own_optimizer)
        OwnSchedule(build, optimizer, [config.learning_rate], 0, name=name_of_builder(config))


class OwnSchedule:
    """What a scheduler gives the groups of an optimizer: learning rates, and momentum or betas where it moves them.

    The scheduler has the groups of its own that `_Groups` shows it, and its steps are counted from the end of the
    warm-up. It is a function of the step: a resumed run plays it from its start, so no backup holds anything of it.
    """

    def __init__(
        self,
        build: OwnScheduler,
        optimizer: Optimizer,
        learning_rates: Sequence[float],
        warmup_steps: int,
        interval_steps: int = 1,
        name: str = "build_scheduler",
        intervals: Callable[[int], int] | None = None,
    ) -> None:
        """`learning_rates` are the groups' full ones; the scheduler steps every `interval_steps` optimizer steps. Where
        these have changed during the run, `intervals` says how many are over after an optimizer step.
        `name` is what the user calls `build`.

        Raises ConfigError if `build` fails.
        """
        self._build, self._optimizer, self._name = build, optimizer, name
        self._learning_rates, self._warmup_steps, self._interval_steps = learning_rates, warmup_steps, interval_steps
        self._intervals = intervals or (lambda step: step // interval_steps)
        self._start()

    def _start(self) -> None:
        self._groups = _Groups(self._optimizer, self._learning_rates)
        self._before = [dict(group) for group in self._groups.param_groups]
        self._moved = {"lr"}
        self._steps = 0
        self._scheduler = _checked(self._build(self._groups), self._name)

    def apply(self, step: int) -> float:
        """Give the optimizer's groups what the step after `step` steps needs; returns the first one's share of its full
        learning rate. Raises ConfigError if the scheduler fails."""
        self._play(self._steps_after(step))
        share = min(1.0, (step + 1) / (self._warmup_steps + 1))
        for group, seen in zip(self._optimizer.param_groups, self._groups.param_groups, strict=True):
            group.update({name: seen[name] for name in self._moved})
            group["lr"] = float(seen["lr"]) * share
        full = self._learning_rates[0]
        return float(self._optimizer.param_groups[0]["lr"]) / full if full else 0.0

    def check(self, total_steps: int) -> None:
        """Raises ConfigError if the scheduler fails within the first steps of a run, as OneCycleLR does after its last
        one."""
        for steps in range(min(self._steps_after(total_steps - 1) + 1, _CHECKED_STEPS)):
            self._play(steps)
        self._start()

    def _steps_after(self, step: int) -> int:
        """The scheduler's steps after `step` of the optimizer."""
        return max(0, self._intervals(step) - self._warmup_steps // self._interval_steps)

    def _optimizer_step(self, steps: int) -> int:
        """The first optimizer step, counted from 1, after `steps` of the scheduler."""
        return (self._warmup_steps // self._interval_steps + steps) * self._interval_steps + 1

    def _play(self, steps: int) -> None:
        if steps < self._steps:
            self._start()
        while self._steps < steps:
            self._groups.step()
            try:
                self._scheduler.step()
            except Exception as error:  # a user's code can raise anything
                raise ConfigError(
                    f"scheduler: {type(self._scheduler).__name__} fails at step "
                    f"{self._optimizer_step(self._steps + 1)}: {error}",
                    "It counts optimizer steps after the warm-up, or epochs if scheduler_interval is epoch; give it as "
                    "many as the run has",
                ) from error
            self._steps += 1
        for group, before in zip(self._groups.param_groups, self._before, strict=True):
            self._moved |= {name for name, value in before.items() if _is_plain(value) and group[name] != value}
            if not (math.isfinite(group["lr"]) and group["lr"] >= 0):
                raise ConfigError(
                    f"scheduler: {type(self._scheduler).__name__} gives the learning rate {float(group['lr'])} at step "
                    f"{self._optimizer_step(self._steps)}",
                    "Correct its arguments",
                )


class _Groups(Optimizer):
    """An optimizer's groups as a scheduler sees them, in copies; there is no step and no state."""

    def __init__(self, optimizer: Optimizer, learning_rates: Sequence[float]) -> None:
        self.defaults, self.state = optimizer.defaults, optimizer.state
        self.param_groups = [
            {**group, "lr": rate} for group, rate in zip(optimizer.param_groups, learning_rates, strict=True)
        ]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: schedulers want to see one before theirs."""


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | tuple | list)


def _of_class(config: TrainConfig, optimizer: Optimizer) -> LRScheduler:
    kind = named_class(config.scheduler_target, "scheduler_target", LRScheduler, "scheduler")
    _check_step(kind)
    arguments = parse_keywords(config.scheduler_arguments)
    try:
        scheduler: LRScheduler = kind(optimizer, **arguments)
    except Exception as error:  # whatever its checks raise
        raise ConfigError(
            f"scheduler_arguments: {kind.__name__} refuses what it is given: {error}",
            f"It takes {', '.join(list(inspect.signature(kind).parameters)[1:])}",
        ) from error
    return scheduler


def _checked(scheduler: object, name: str) -> LRScheduler:
    """`scheduler` that `name` returned, if it is one that needs no metric. Raises ConfigError."""
    if not isinstance(scheduler, LRScheduler):
        found = "None (is a `return` missing?)" if scheduler is None else f"a {type(scheduler).__name__}"
        raise ConfigError(f"{name} returned {found} instead of a torch.optim.lr_scheduler.LRScheduler")
    _check_step(type(scheduler))
    return scheduler


def _check_step(kind: type[LRScheduler]) -> None:
    needed = [
        name
        for name, parameter in list(inspect.signature(kind.step).parameters.items())[1:]
        if parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    ]
    if needed:
        raise ConfigError(
            f"scheduler: {kind.__name__} needs {needed[0]} at each of its steps, and Tandem's schedules depend on the "
            "number of the step only, so that a resumed run goes on exactly",
            "Use another class; early_stopping_patience ends a run that no longer improves",
        )
