"""Ending a run that no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class EarlyStopping:
    """Counts validations without improvement. All ranks see the same losses, so all stop at the same step."""

    patience: int | None  # validations without improvement before the run ends; None: never
    best: float | None = None
    wait_count: int = 0

    def update(self, loss: float) -> None:
        """Take in the loss of one more validation."""
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best, self.wait_count = loss, 0
        else:
            self.wait_count += 1

    @property
    def should_stop(self) -> bool:
        """True if the patience is used up."""
        return self.patience is not None and self.wait_count >= self.patience
