"""Validation loss on fixed noise and timesteps, and the patience that ends a run which no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from modules.data.loader import Loader
from modules.data.order import StepSamples
from modules.families.family import Family
from modules.training.precision import Precision


@torch.no_grad()
def validation_sums(
    family: Family, loader: Loader, steps: list[StepSamples], precision: Precision, device: torch.device
) -> tuple[float, float]:
    """This rank's weighted sum of losses and sum of weights over the validation pictures.

    Every picture keeps its noise and timestep from one validation to the next, so the figures can be compared.
    """
    total, weight = 0.0, 0.0
    training = family.model.training
    family.model.eval()
    for batch in loader.validation(steps):
        batch = batch.to(device, precision.weights)
        with precision.autocast():
            losses = family.loss(batch)
        total += float((losses * batch.weights).sum())
        weight += float(batch.weights.sum())
    family.model.train(training)
    return total, weight


@dataclass
class Patience:
    """How long validation has not improved. All ranks see the same losses, so all give up at the same step."""

    limit: int | None  # validations without improvement before the run ends; None: never
    best: float | None = None
    without_improvement: int = 0

    def add(self, loss: float) -> None:
        """Take note of one more validation."""
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best, self.without_improvement = loss, 0
        else:
            self.without_improvement += 1

    @property
    def exhausted(self) -> bool:
        """True where the run should end."""
        return self.limit is not None and self.without_improvement >= self.limit
