"""What is checked in every step: gradients that are not finite, and the form of a family's losses."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from modules.config import TrainingError
from modules.monitoring import Report, StepRecord


class NonFiniteGuard:
    """Counts steps in a row whose gradient was not finite, those aside in which memory ran out (see MemoryGuard).

    The gradient norm is the same on all ranks, so all ranks agree.
    """

    def __init__(
        self,
        limit: int,
        precision: str,
        newest_backup: Callable[[], str],
        report: Report,
        check_weights: Callable[[], None] = lambda: None,
        skipped_by: str = "every rank",
    ) -> None:
        """`check_weights` is called once, if no step before the first non-finite one was finite: it raises if that is
        due to weights that were loaded."""
        self._limit = limit
        self._precision = precision
        self._newest_backup = newest_backup
        self._report = report
        self._check_weights: Callable[[], None] | None = check_weights
        self._in_a_row = 0
        self._skipped_by = skipped_by

    def check(self, record: StepRecord) -> None:
        """Warn of a skipped step; raises TrainingError after too many in a row."""
        if math.isfinite(record.grad_norm):
            self._in_a_row, self._check_weights = 0, None
        if math.isfinite(record.grad_norm) or record.out_of_memory:
            return
        if self._check_weights is not None:
            self._check_weights()
            self._check_weights = None
        self._in_a_row += 1
        self._report.warning(
            f"Step {record.step}: the gradient is not finite, so {self._skipped_by} skipped it "
            f"({self._in_a_row} in a row)."
        )
        if self._in_a_row >= self._limit:
            backup = self._newest_backup()
            raise TrainingError(
                f"{self._in_a_row} steps in a row had a gradient that is not finite (the last was step "
                f"{record.step}). {f'The last good backup is {backup}' if backup else 'There is no backup yet'}.",
                "Try a lower learning_rate, more warmup_steps"
                f"{', or bf16 instead of fp16' if self._precision == 'fp16' else ''}, then "
                f"{'--resume latest' if backup else 'start again'}.",
            )


def check_per_sample(losses: Tensor, samples: int) -> Tensor:
    """The losses [B] unchanged. Raises TrainingError if a family returned a mean, or anything but a loss per sample."""
    if isinstance(losses, Tensor) and losses.shape == (samples,):
        return losses
    given = f"a tensor of shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    raise TrainingError(
        f"The family's loss() returned {given} for {samples} samples; it must return one loss for each, [{samples}].",
        "Average over pixels only, such as .mean(dim=(1, 2, 3)); the trainer weighs and averages the samples.",
    )
