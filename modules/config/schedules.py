"""Learning-rate schedules: each a pure function of the share of the run that is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from modules.config.train_config import TrainConfig

Schedule = Callable[[float, TrainConfig], float]


@dataclass(frozen=True)
class Pace:
    """How a run whose number of steps has changed goes through the rest of its schedule: without a jump, and to the
    end."""

    steps: Annotated[int, Field(ge=1, lt=1 << 53)]  # of the schedule
    since: Annotated[int, Field(ge=0, lt=1 << 53)]  # steps of the run at the change
    place: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # in the schedule then

    def at(self, step: int, total_steps: int) -> float:
        """The place in the schedule after `step` steps of a run of `total_steps`."""
        left = max(1, total_steps - self.since)
        return self.place + (self.steps - self.place) * (step - self.since) / left


def changed_pace(pace: Pace | None, step: int, before: int, now: int) -> Pace | None:
    """The pace from `step` on of a run that has `now` steps instead of `before`; None for one step after the other."""
    if before == now:
        return pace
    return Pace(before, step, float(step)) if pace is None else Pace(pace.steps, step, pace.at(step, before))


def learning_rate_factor(step: float, total_steps: int, config: TrainConfig, pace: Pace | None = None) -> float:
    """The factor on the learning rate for optimizer step `step` (0-based) of `total_steps`.

    Rises linearly over the warm-up, then follows the schedule from 1 down to `min_learning_rate_factor`.
    """
    if pace is not None:
        step, total_steps = pace.at(int(step), total_steps), pace.steps
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    floor = config.min_learning_rate_factor
    return floor + (1 - floor) * SCHEDULES[config.scheduler](done, config)


def warmup_steps(config: TrainConfig, total_steps: int) -> int:
    """The number of warm-up steps of a run of `total_steps`."""
    # rounded down, as kohya's scripts (get_scheduler_fix) and OneTrainer (create_lr_scheduler) do
    return int(config.warmup_fraction * total_steps) if config.warmup_fraction else config.warmup_steps


def long_warmup(config: TrainConfig, total_steps: int) -> str:
    """That a run of `total_steps` ends before its learning rate is reached, in a sentence; empty if it does not."""
    warmup = warmup_steps(config, total_steps)
    if warmup < total_steps or not total_steps:
        return ""
    name = "warmup_fraction" if config.warmup_fraction else "warmup_steps"
    last = learning_rate_factor(total_steps - 1, total_steps, config)
    return (
        f"{name}: the learning rate rises over {warmup:,} steps, but the run ends after {total_steps:,}, at {last:.2g} "
        f"of the learning_rate. Set {name} to less, such as a twentieth of the run."
    )


def own_scheduler_note(config: TrainConfig) -> str:
    """A sentence on a scheduler that is none of Tandem's; empty without one."""
    arguments = f"({config.scheduler_arguments})" * bool(config.scheduler_arguments)
    if config.scheduler != "custom":
        return ""
    class_name = config.scheduler_target.rpartition(".")[2]
    named = f"the scheduler {class_name}{arguments}" if class_name else "a scheduler of the family's or program's own"
    warmed = "after the warm-up " * bool(config.warmup_steps or config.warmup_fraction)
    counted = "epoch by epoch" if config.scheduler_interval == "epoch" else "step by step of the optimizer"
    return f"The learning rate {warmed}follows {named}, {counted}."


def _constant(done: float, config: TrainConfig) -> float:
    return 1.0


def _linear(done: float, config: TrainConfig) -> float:
    return 1.0 - done


def _cosine(done: float, config: TrainConfig) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def _cosine_with_restarts(done: float, config: TrainConfig) -> float:
    """SGDR (Loshchilov and Hutter, 2017) with cycles of equal length."""
    if done >= 1:
        return 0.0
    return _cosine(done * config.scheduler_cycles % 1.0, config)


def _polynomial(done: float, config: TrainConfig) -> float:
    return float((1.0 - done) ** config.scheduler_power)


def _rex(done: float, config: TrainConfig) -> float:
    """The profile (1 - z) / (1 - b z) of arXiv:2107.04197, with OneTrainer's b."""
    return (1.0 - done) / (1.0 - 0.9 * done)


SCHEDULES: dict[str, Schedule] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "rex": _rex,
    "custom": _constant,  # the class has its own factor, modules/training/optim/own_schedule.py
}
