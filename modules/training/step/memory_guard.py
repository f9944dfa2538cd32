"""What keeps a run going when memory runs out: micro-batches in pieces, and steps that every rank skips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from modules.config import TrainingError
from modules.data.batch import Batch
from modules.machine import hostname
from modules.monitoring import Report, StepRecord
from modules.run.folder.error_help import explain_exception
from modules.training.step.metrics import SAMPLES_AT_ONCE


class OutOfMemory(TrainingError):
    """Memory ran out, and nothing smaller is left to try."""

    kind = "out_of_memory"


class MemoryGuard:
    """Splits micro-batches into pieces that fit into memory, which does not change the gradients.

    A step in which memory ran out is skipped by every rank and followed by smaller pieces: first on this rank, then,
    after the next sync, on all of them, if they have equal shares.
    """

    def __init__(
        self,
        samples: int,
        global_batch_size: int,
        rank: int,
        world_size: int,
        report: Report,
        *,
        together: bool = True,
        skipped_by: str = "every rank",
    ) -> None:
        """`samples` are the most at once; `together`: no rank takes more than the one with the least memory."""
        self.max_samples = samples
        self.together = together
        self._of_ranks = [samples] * world_size  # at the latest sync
        self.skip_step = False  # whether the current step must not be applied
        self._global_batch_size = global_batch_size
        self._rank, self._world_size = rank, world_size
        self._report = report
        self._in_gradient_sync = False
        self._skipped_by = skipped_by
        self._skipped_steps = 0

    def add_in_pieces(
        self, batch: Batch, add_gradients: Callable[[Batch], None], complete_gradient_sync: Callable[[], bool]
    ) -> None:
        """Call `add_gradients` for each piece of `batch`. Raises OutOfMemory if not even one sample fits.

        `complete_gradient_sync` makes the gradients of all ranks NaN after an error in the backward that reduces them,
        and returns whether that worked.
        """
        for piece in batch.split(self.max_samples):
            is_added = self._try_add(piece, add_gradients)
            if not is_added and piece.is_last_of_step and not self._in_gradient_sync:
                # the other ranks wait in the reduction: take part in it with one sample of a step that is skipped
                is_added = self._try_add(replace(next(piece.split(1)), is_last_of_step=True), add_gradients)
                if not is_added and not self._in_gradient_sync:
                    raise no_smaller_piece(self._rank)  # leaving ends their wait
            if not is_added and self._in_gradient_sync:
                self._end_gradient_sync(complete_gradient_sync)

    @property
    def loss_factor(self) -> float:
        """NaN in a skipped step: the reduction then makes the gradients of all ranks NaN, and all skip it."""
        return math.nan if self.skip_step else 1.0

    def enter_gradient_sync(self) -> None:
        """The reduction may start now: from here on the others need every gradient of this rank."""
        self._in_gradient_sync = self._world_size > 1

    def end_step(self) -> None:
        """Halve the pieces after a skipped step. Raises OutOfMemory if they hold a single sample already."""
        if self.skip_step:
            if self.max_samples == 1:
                raise no_smaller_piece(self._rank)
            self.max_samples = math.ceil(self.max_samples / 2)
        self.skip_step = False

    def limit(self, samples: int) -> None:
        """Take at most `samples` at once from now on."""
        self.max_samples = min(self.max_samples, samples)

    def metrics(self) -> dict[str, float]:
        """What the other ranks need to know of this one."""
        return {f"{SAMPLES_AT_ONCE}/{self._rank}": self.max_samples}

    def follow(self, sums: Mapping[str, float], records: Sequence[StepRecord]) -> None:
        """Report the `records` of a sync that were skipped; `sums` are those of the ranks.

        Ranks with equal shares then take equally many samples at once, so that they take equally long.
        """
        before, self._of_ranks = self._of_ranks, [int(sums[f"{SAMPLES_AT_ONCE}/{n}"]) for n in range(self._world_size)]
        if self.together:
            self.limit(min(self._of_ranks))
        if skipped := [record.step for record in records if record.out_of_memory]:
            self._skipped_steps += len(skipped)
            fewer = [rank for rank, samples in enumerate(self._of_ranks) if samples < before[rank]]
            rank = min(fewer or range(self._world_size), key=self._of_ranks.__getitem__)
            self._report.warning(self._explain(skipped, rank, self._of_ranks[rank]))

    def _explain(self, steps: Sequence[int], rank: int, samples: int) -> str:
        where = f" on rank {rank}" if self._world_size > 1 else ""
        which = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
        held = f"{samples} samples" if samples > 1 else "1 sample"
        whose, advice = ("", f"; set batch_size to {samples} to start like this") if self.together else ("its ", "")
        return (
            f"Out of memory{where}: {self._skipped_by} skipped {which}, and {whose}micro-batches now hold at most "
            f"{held}. "
            f"The effective batch stays {self._global_batch_size}{advice}. "
            f"Steps skipped for lack of memory so far: {self._skipped_steps}."
        )

    def _try_add(self, piece: Batch, add_gradients: Callable[[Batch], None]) -> bool:
        """Whether the gradients of `piece` were added; if not, the step is skipped."""
        self._in_gradient_sync = False
        try:
            add_gradients(piece)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.skip_step = True
        else:
            return True
        release_memory()  # outside the handler: the error keeps the tensors of the failed step alive
        return False

    def _end_gradient_sync(self, complete_gradient_sync: Callable[[], bool]) -> None:
        try:
            is_complete = complete_gradient_sync()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            is_complete = False
        if not is_complete:
            raise OutOfMemory(
                f"Out of memory on rank {self._rank} ({hostname()}) while the gradients of the step were being summed "
                "over the ranks, so the step could not be skipped.",
                f"Set batch_size to {math.ceil(self.max_samples / 2)} (global_batch_size keeps the effective batch), "
                "then --resume latest.",
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out in this process, in a way that less work would have avoided.

    That is torch's own error, and what CUDA, cuDNN and cuBLAS say, or the allocator of a CPU. Memory that ran out in a
    collective does not count: the group cannot be used after it.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError) or "nccl" in str(error).lower():
        return False
    return explain_exception(error, training=True).kind in ("out_of_memory", "host_memory")


def release_memory() -> None:
    """Return cached memory to the device after a failed attempt, so that the next one finds it in one piece."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def explain_single_sample(rank: int) -> Iterator[None]:
    """Around work on one sample: raises OutOfMemory, which says what to try, if memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise no_smaller_piece(rank) from error


@contextmanager
def step_cannot_be_skipped(rank: int, cause: str, remedies: str) -> Iterator[None]:
    """Around a forward and backward that the other ranks take part in: raises OutOfMemory if memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"Out of memory on rank {rank} ({hostname()}). With {cause} the other ranks need this one in the middle "
            "of the step, so the step cannot be skipped.",
            f"{remedies}, then --resume latest.",
        ) from error


def no_smaller_piece(rank: int) -> OutOfMemory:
    """The error if no smaller micro-batch is left to try."""
    return OutOfMemory(
        f"Out of memory with a single sample at a time, on rank {rank} ({hostname()}).",
        "Try gradient_checkpointing, a lower resolution, precision bf16, or a smaller model.",
    )
