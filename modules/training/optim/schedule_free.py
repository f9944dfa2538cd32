"""Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682): gradients at y, the average x for all else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from modules.distributed import Weights


def averaged(y: Tensor, z: Tensor, beta1: float) -> Tensor:
    """x, from y = (1 - beta1) z + beta1 x; all of one shape."""
    return torch.lerp(y, z, 1 - 1 / beta1)


class ScheduleFreeWeights:
    """The averaged weights x of a schedule-free optimizer, whose own ones are y = (1 - beta1) z + beta1 x."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Weights) -> None:
        self._optimizer = optimizer
        self._weights = weights

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, weights: Weights) -> ScheduleFreeWeights | None:
        """None for another optimizer."""
        package = sys.modules.get("pytorch_optimizer")  # its import takes a second, so only its users pay for it
        return cls(optimizer, weights) if package and isinstance(optimizer, package.ScheduleFreeAdamW) else None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds x inside the block, which takes memory for one more copy of what is trained.

        Then y to the bit, which the optimizer's own eval() and train() would round.
        """
        own = self._weights.local
        betas = {id(p): group["betas"][0] for group in self._optimizer.param_groups for p in group["params"]}
        average = {}
        for name, weight in own.items():
            y, state = weight.detach(), self._optimizer.state.get(weight, {})
            # without a step yet y is x
            average[name] = averaged(y, state["z"], betas[id(weight)]) if "z" in state else y.clone()
        self._weights.swap(own, average)
        try:
            yield
        finally:
            self._weights.swap(own, average)
