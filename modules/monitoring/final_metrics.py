"""The figures by which finished runs are compared: of the last steps, of the validations, and the speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

LAST_STEPS: Final = 100  # whose mean loss is that of the end: a single step's is mostly noise


class FinalMetrics:
    """Follows steps and validations since the last start; memory does not grow with their number."""

    def __init__(self) -> None:
        self.step = 0  # the last one
        self._losses: deque[float] = deque(maxlen=LAST_STEPS)
        self._validations: dict[str, float] = {}  # by tag

    def add_step(self, step: int, loss: float) -> None:
        """A step that is done; a loss that is not finite is left out."""
        self.step = step
        if math.isfinite(loss):
            self._losses.append(loss)

    def add_validation(self, name: str, loss: float, metrics: Mapping[str, float]) -> None:
        """The latest of the set `name`, "validation" or "test", with metrics such as the accuracy."""
        found = {f"final/{name}_loss": loss, **{f"final/{name}_{metric}": each for metric, each in metrics.items()}}
        self._validations |= {tag: value for tag, value in found.items() if math.isfinite(value)}
        if math.isfinite(loss):
            best = f"final/best_{name}_loss"
            self._validations[best] = min(loss, self._validations.get(best, math.inf))

    def scalars(self, samples_per_s: float) -> dict[str, float]:
        """By tag; empty before the first step."""
        if not self._losses:
            return {}
        mean = math.fsum(self._losses) / len(self._losses)
        return {"final/loss": mean, **self._validations, "final/samples_per_s": samples_per_s}
