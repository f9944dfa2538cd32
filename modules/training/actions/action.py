"""What an action is: something that happens between two steps, now and then or on request."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from modules.checkpoint import Position
from modules.config import Interval, TrainConfig
from modules.distributed import RankGroup
from modules.machine import hostname
from modules.monitoring import Report
from modules.run import Failure
from modules.run.folder.failures import append_traceback
from modules.training.state.components import Components
from modules.training.state.early_stopping import EarlyStopping
from modules.training.step.memory_guard import OutOfMemory


@dataclass(frozen=True)
class ActionContext:
    """What an action works with, at one position of the run."""

    components: Components
    position: Position
    ranks: RankGroup
    report: Report
    early_stopping: EarlyStopping
    stop_is_wanted: Callable[[], bool]  # whether this rank knows that the run is to end; others may not know it yet
    training_continues: bool = False  # files may be written in the background, and a failure to is only a warning
    take_custom_samples: Callable[[], list[str]] = list  # this rank's requests, each as its command file holds it


@dataclass(frozen=True)
class Action:
    """One row of the table of actions.

    `compute` yields results one by one, `write` puts one of them on disk, raising OSError if it cannot. Rank 0 computes
    and writes in turn while the others wait. If all ranks have to compute, rank 0 writes afterwards; an action without
    `write` is computed by all ranks. One that is not needed at a step, such as samples without prompts, is left out.
    After any error of an optional one, while rank 0 computes and writes, training goes on.
    """

    name: str
    every: str | None  # the setting that is its interval; None: only on request, and at the end of the run
    can_be_requested: bool  # by a file in commands/, and so by the window's button
    compute: Callable[[ActionContext], Generator[Any, None, None]]
    write: Callable[[ActionContext, Any], None] | None
    phase: str  # of the run meanwhile: what it is said to do, and what an error is said to have happened in
    is_optional: bool = False
    is_needed: Callable[[ActionContext], bool] = lambda _: True  # the same on all ranks
    computed_by_all: Callable[[TrainConfig], bool] = lambda _: False
    written_by_all: Callable[[Components], bool] = lambda _: False  # each rank its part; then `write` syncs the ranks
    has_content: bool = False  # each request asks for something of its own, also several at one step
    follows: str | None = None  # the action after which it runs each time, at the same step

    def interval(self, config: TrainConfig) -> Interval:
        """How often the action runs by itself."""
        interval: Interval = Interval.never() if self.every is None else getattr(config, self.every)
        return interval


@contextmanager
def inference_model(components: Components) -> Iterator[None]:
    """Inside the block the family holds the bare module, with averaged weights if EMA or the optimizer has them.

    The wrapped model must not be called between steps: its forward may start a collective that other ranks do not join.
    """
    family, weights = components.family, components.weights
    wrapped, family.model = family.model, weights.model
    modes = [(module, module.training) for module in weights.model.modules()]
    try:
        average = components.ema or components.schedule_free
        with nullcontext() if average is None else average.in_place():
            yield
    finally:
        weights.reshard()
        family.model = wrapped
        for module, mode in modes:  # an error may have left them in the other one
            module.training = mode


@contextmanager
def buffers_of_rank0(context: ActionContext) -> Iterator[None]:
    """Around what all ranks compute together: with rank 0's buffers, which are those that are saved, then their own.

    Without broadcast_buffers, BatchNorm's running averages differ from rank to rank.
    """
    config, model = context.components.config, context.components.weights.model
    buffers = [] if config.broadcast_buffers or context.ranks.world_size == 1 else list(model.buffers())
    own = [buffer.clone() for buffer in buffers]
    for buffer in buffers:
        dist.broadcast(buffer, src=0)
    try:
        yield
    finally:
        for buffer, kept in zip(buffers, own, strict=True):
            buffer.copy_(kept)


def left_out(context: ActionContext, error: Exception, what: str) -> str:
    """The warning after an error that costs the run only `what`; its traceback is written to the rank's log."""
    folder, rank = context.components.folder, context.ranks.rank
    failure = Failure.from_exception(
        error, rank=rank, traceback="".join(traceback.format_exception(error)), training=True
    )
    append_traceback(folder, failure)
    return (
        f"Step {context.position.step}: an error on rank {rank} ({hostname()}) in {what}, so it is left out and "
        f"training continues: {failure.message.rstrip('.')}. Full traceback: {folder.log_file(rank)}"
    )


def leave_if_sharded(context: ActionContext, error: BaseException, what: str) -> None:
    """Raises OutOfMemory if the weights are sharded: the other ranks need this one in the middle of the forward."""
    if context.components.config.training_mode == "fully_sharded" and context.ranks.world_size > 1:
        raise OutOfMemory(
            f"Out of memory on rank {context.ranks.rank} ({hostname()}) in {what}. With training_mode fully_sharded "
            "the other ranks need this one in the middle of it, so it cannot be left out.",
            "Make it smaller, or set fsdp_cpu_offload, then --resume latest.",
        ) from error
