"""Values derived from the settings and the world size: effective batch size, length and learning-rate scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from modules.config.train_config import TrainConfig

# How the learning rate grows with the world size: the square root keeps the noise of Adam-like updates constant
# (Granziol et al. 2022, https://arxiv.org/abs/2006.09092), linear scaling is for SGD (Goyal et al. 2017,
# https://arxiv.org/abs/1706.02677).
_SCALING: Final[Mapping[str, Callable[[float], float]]] = {
    "sqrt": math.sqrt,
    "linear": lambda count: count,
    "none": lambda count: 1.0,
}


def effective_batch(config: TrainConfig, world_size: int) -> int:
    """The number of samples in one optimizer step over all processes."""
    return config.global_batch_size or config.batch_size * world_size * config.gradient_accumulation_steps


def total_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run: `max_steps` or all epochs, whichever is less."""
    by_epochs = config.epochs * steps_per_epoch
    return by_epochs if config.max_steps is None else min(by_epochs, config.max_steps)


def learning_rate_scale(config: TrainConfig, world_size: int) -> float:
    """The factor on the learning rate; 1 if global_batch_size fixes the batch for any number of processes, or if the
    optimizer estimates its step size from the gradients."""
    if config.global_batch_size is not None or config.optimizer.finds_step_size or world_size == 1:
        return 1.0
    return _SCALING[config.lr_scaling](world_size)
