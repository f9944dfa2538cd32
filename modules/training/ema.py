"""An exponential moving average of the trained weights, used for samples, validation and saved models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Ema:
    """The averaged copy of the trainable weights.

    The decay ramps up as (1 + step) / (10 + step), so that early steps soon lose their weight (as in tf.train's
    ExponentialMovingAverage). It depends on the step alone, so a resumed run averages in the same way.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self._weights = dict(weights)
        self._limit = decay
        self.average = {name: weight.detach().clone() for name, weight in weights.items()}

    def update(self, step: int) -> None:
        """Move towards the current weights after optimizer step `step` (1-based)."""
        decay = min(self._limit, (1 + step) / (10 + step))
        current = [weight.detach() for weight in self._weights.values()]
        torch._foreach_lerp_(list(self.average.values()), current, 1 - decay)

    def load(self, average: Mapping[str, Tensor]) -> None:
        """Load a saved average. Raises KeyError if it lacks a weight."""
        for name, tensor in self.average.items():
            tensor.copy_(average[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the averaged weights inside the block, and its own again after it."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        _copy(self.average, self._weights)
        try:
            yield
        finally:
            _copy(own, self._weights)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
