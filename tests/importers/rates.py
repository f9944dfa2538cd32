"""The learning rates of an imported config."""

from __future__ import annotations

import torch
from torch import nn

from modules.config import TrainConfig
from modules.config.schedules import learning_rate_factor, warmup_steps
from modules.training.optim.own_schedule import OwnSchedule, scheduler_of


def rates(config: TrainConfig, steps: int) -> list[float]:
    """That of each optimizer step of a run of `steps`."""
    rate = config.learning_rate
    build = scheduler_of(config, None)
    if build is None:
        return [rate * learning_rate_factor(step, steps, config) for step in range(steps)]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = OwnSchedule(build, optimizer, [rate], warmup_steps(config, steps))
    return [rate * schedule.apply(step) for step in range(steps)]
