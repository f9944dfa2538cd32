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


def end_of_run(config: TrainConfig, steps_per_epoch: int) -> str:
    """Which of two limits ends the run, in a sentence; empty if there is only one, or no image."""
    by_epochs = config.epochs * steps_per_epoch
    if config.max_steps is None or not steps_per_epoch:
        return ""
    epochs = "epoch ends" if config.epochs == 1 else f"{config.epochs:,} epochs end"
    if config.max_steps < by_epochs:
        done = f"{config.max_steps / steps_per_epoch:.3g}"
        return f"max_steps ends the run after {config.max_steps:,} steps, {done} of {config.epochs:,} epochs."
    return f"The {epochs} the run after {by_epochs:,} of {config.max_steps:,} steps."


def ranks_together(config: TrainConfig, world_size: int) -> int:
    """How many ranks average their gradients in each step: with local updates those of one machine."""
    return world_size if config.local_steps is None else max(1, world_size // config.num_nodes)


def learning_rate_scale(config: TrainConfig, world_size: int) -> float:
    """The factor on the learning rate; 1 if global_batch_size fixes the batch for any number of processes, or if the
    optimizer estimates its step size from the gradients."""
    together = ranks_together(config, world_size)
    if config.global_batch_size is not None or config.optimizer.finds_step_size or together == 1:
        return 1.0
    return _SCALING[config.lr_scaling](together)
