"""What keeps a run going when a step fails: gradients that are not finite, and memory that runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from modules.config import TrainingError
from modules.data.batch import Batch
from modules.monitoring import Report, StepRecord
from modules.training.step_metrics import SAMPLES_AT_ONCE


class NonFiniteGuard:
    """Counts skipped steps in a row. The gradient norm is the same on all ranks, so all ranks agree."""

    def __init__(self, limit: int, newest_backup: Callable[[], Path | None], report: Report) -> None:
        self._limit = limit
        self._newest_backup = newest_backup
        self._report = report
        self._in_a_row = 0

    def check(self, record: StepRecord) -> None:
        """Warn of a skipped step; raises TrainingError after too many in a row."""
        if math.isfinite(record.grad_norm):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self._report.warning(
            f"Step {record.step}: the gradient is not finite, so every rank skipped it ({self._in_a_row} in a row)."
        )
        if self._in_a_row >= self._limit:
            backup = self._newest_backup()
            raise TrainingError(
                f"{self._in_a_row} steps in a row had a gradient that is not finite (the last was step "
                f"{record.step}). {f'The last good backup is {backup}' if backup else 'There is no backup yet'}.",
                "Try a lower learning_rate, more warmup_steps, or bf16 instead of fp16, then "
                f"{'--resume latest' if backup else 'start again'}.",
            )


class MemoryGuard:
    """Splits micro-batches into pieces that fit into memory, which does not change the gradients.

    A step in which memory ran out is skipped by every rank and followed by smaller pieces: first on this rank, then,
    after the next sync, on all of them.
    """

    def __init__(self, samples: int, global_batch_size: int, world_size: int, report: Report) -> None:
        self.max_samples = samples  # at once
        self.skip_step = False  # whether the current step must not be applied
        self._global_batch_size = global_batch_size
        self._has_peers = world_size > 1
        self._report = report
        self._in_gradient_sync = False

    def add_in_pieces(self, batch: Batch, add_gradients: Callable[[Batch], None]) -> None:
        """Call `add_gradients` for each piece of `batch`. Raises TrainingError if not even one sample fits."""
        for piece in batch.split(self.max_samples):
            if self._try_add(piece, add_gradients) or not piece.is_last_of_step:
                continue
            # the other ranks wait in the reduction: take part in it with one sample of a step that is skipped
            if not self._try_add(replace(next(piece.split(1)), is_last_of_step=True), add_gradients):
                raise out_of_memory()  # leaving ends their wait

    @property
    def loss_factor(self) -> float:
        """NaN in a skipped step: the reduction then makes the gradients of all ranks NaN, and all skip it."""
        return math.nan if self.skip_step else 1.0

    def enter_gradient_sync(self) -> None:
        """The reduction may start now: from here on running out of memory cannot be undone."""
        self._in_gradient_sync = self._has_peers

    def end_step(self) -> None:
        """Halve the pieces after a skipped step. Raises TrainingError if they hold a single sample already."""
        if self.skip_step:
            if self.max_samples == 1:
                raise out_of_memory()
            self._limit_to(math.ceil(self.max_samples / 2))
        self.skip_step = False

    def metrics(self, rank: int) -> dict[str, float]:
        """What the other ranks need to know of this one."""
        return {f"{SAMPLES_AT_ONCE}/{rank}": self.max_samples}

    def follow_smallest(self, sums: Mapping[str, float], world_size: int) -> None:
        """Take no more samples at once than the rank with the least memory, so that all ranks take equally long."""
        self._limit_to(int(min(sums[f"{SAMPLES_AT_ONCE}/{rank}"] for rank in range(world_size))))

    def _try_add(self, piece: Batch, add_gradients: Callable[[Batch], None]) -> bool:
        self._in_gradient_sync = False
        try:
            add_gradients(piece)
        except torch.OutOfMemoryError:
            if self._in_gradient_sync:
                raise  # part of the gradients may have reached the other ranks already
            self.skip_step = True
            return False
        return True

    def _limit_to(self, samples: int) -> None:
        if samples >= self.max_samples:
            return
        self.max_samples = samples
        self._report.warning(
            "Out of memory: every rank skipped the step, and micro-batches now hold at most "
            f"{self.max_samples} samples. The effective batch stays {self._global_batch_size}; "
            f"set batch_size to {self.max_samples} to start like this."
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


def out_of_memory() -> TrainingError:
    """The error if no smaller micro-batch is left to try."""
    return TrainingError(
        "Out of memory with a single sample at a time.",
        "Try gradient_checkpointing, a lower resolution, precision bf16, or a smaller model.",
    )
