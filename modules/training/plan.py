"""The arithmetic of a run before it starts: effective batch and learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from modules.config import TrainConfig


@dataclass(frozen=True)
class Plan:
    """What stays the same over the whole run, also when it is resumed on another number of ranks."""

    global_batch_size: int
    original_learning_rate: float
    learning_rate: float
    explanation: str  # one line for the terminal; empty where nothing was scaled


SCALING: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "linear": lambda n: n, "none": lambda n: 1.0}


def plan_run(config: TrainConfig, world_size: int) -> Plan:
    """The plan for a run that begins with `world_size` ranks.

    With `global_batch_size` set the learning rate is not scaled: the run is then the same on any number of ranks.
    """
    if config.global_batch_size is not None:
        return Plan(config.global_batch_size, config.learning_rate, config.learning_rate, "")
    effective = config.batch_size * world_size * config.gradient_accumulation_steps
    factor = SCALING[config.lr_scaling](world_size) if world_size > 1 else 1.0
    scaled = config.learning_rate * factor
    if factor == 1.0:
        return Plan(effective, config.learning_rate, config.learning_rate, "")
    explanation = (
        f"Learning rate {config.learning_rate:g} becomes {scaled:.3g} "
        f"({config.lr_scaling} scaling over {world_size} ranks)."
    )
    return Plan(effective, config.learning_rate, scaled, explanation)
