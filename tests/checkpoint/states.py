"""Training states without a training."""

from __future__ import annotations

import torch

from modules.checkpoint import OptimizerState, Position, TrainingState


def state_at(step: int, size: int = 100, ema: bool = True) -> TrainingState:
    """A state whose weights tell its step."""
    weights = {"layer.weight": torch.full((size,), float(step)), "layer.bias": torch.arange(3.0)}
    optimizer = OptimizerState(
        "AdamW",
        {"layer.weight/exp_avg": torch.full((size,), step / 2)},
        {"layer.bias": {"step": step, "listed": [1, 2.5, None]}},
        [{"lr": 0.1, "betas": [0.9, 0.99]}],
    )
    position = Position(
        samples_seen=step * 8,
        step=step,
        epoch=0,
        epoch_size=41,
        global_batch_size=8,
        world_size=2,
        original_learning_rate=0.1,
        learning_rate=0.2,
        best_validation=0.5,
        best_step=step,
        validations_without_improvement=1,
    )
    return TrainingState(position, weights, dict(weights) if ema else None, optimizer, {"scale": 2.0})
