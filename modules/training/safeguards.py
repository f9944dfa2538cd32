"""What keeps a run going when a step fails: gradients that are not finite, and memory that is not enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from modules.config import TrainingError
from modules.monitoring import Report, StepRecord


class GradientWatch:
    """Counts steps in a row that were passed over. The norm is the same on all ranks, so all judge alike."""

    def __init__(self, limit: int, newest_backup: Callable[[], Path | None], report: Report) -> None:
        self._limit = limit
        self._newest_backup = newest_backup
        self._report = report
        self._in_a_row = 0

    def look(self, record: StepRecord) -> None:
        """Warn of a step that was passed over; raise TrainingError after too many in a row."""
        if math.isfinite(record.grad_norm):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self._report.warning(
            f"Step {record.step}: the gradient is not finite, so no rank applied it ({self._in_a_row} in a row)."
        )
        if self._in_a_row >= self._limit:
            backup = self._newest_backup()
            raise TrainingError(
                f"{self._in_a_row} steps in a row had a gradient that is not finite (the last was step "
                f"{record.step}). {f'The last good backup is {backup}' if backup else 'There is no backup yet'}.",
                "Try a lower learning_rate, more warmup_steps, or bf16 instead of fp16, then "
                f"{'--resume latest' if backup else 'begin anew'}.",
            )


class MicroBatchLimit:
    """How many samples fit into memory at once; halved by all ranks, which leaves the result as it is."""

    def __init__(self, samples: int, global_batch_size: int, report: Report) -> None:
        self.samples = samples
        self._global_batch_size = global_batch_size
        self._report = report

    def halve(self) -> None:
        """After a step for which this rank's memory was not enough. Raises TrainingError at a single sample."""
        if self.samples == 1:
            raise not_enough_memory()
        self.follow(math.ceil(self.samples / 2))

    def follow(self, least: int) -> None:
        """Take no more at once than the rank with the least memory does, so that all need equally long."""
        if least >= self.samples:
            return
        self.samples = least
        self._report.warning(
            "Out of memory: the step was passed over on every rank, and micro-batches now hold at most "
            f"{self.samples} samples. The effective batch stays {self._global_batch_size}; "
            f"set batch_size to {self.samples} to begin like this."
        )


def per_sample(losses: Tensor, samples: int) -> Tensor:
    """The losses as they came. Raises TrainingError where a family gave a mean, or no loss for each sample."""
    if isinstance(losses, Tensor) and losses.shape == (samples,):
        return losses
    given = f"a tensor of shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    raise TrainingError(
        f"The family's loss() returned {given} for {samples} samples; it must return one loss for each, [{samples}].",
        "Average over pixels only, such as .mean(dim=(1, 2, 3)); the trainer weighs and averages the samples.",
    )


def not_enough_memory() -> TrainingError:
    """The error where no smaller micro-batch is left to try."""
    return TrainingError(
        "Out of memory with a single sample at a time.",
        "Try gradient_checkpointing, a lower resolution, precision bf16, or a smaller model.",
    )
