"""Figures of the steps under way: they stay on the device, and are read late and summed over the ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from modules.data.progress import Progress
from modules.monitoring import StepRecord

# Per rank and step: seconds in all, those of waiting for the loader, those until the gradients begin to wait for the
# other ranks (the others are what a reduction makes equal everywhere), and samples.
FIGURES = ("step_s", "data_s", "own_s", "samples")

# Ranks talk about this often, however fast their steps are: a talk costs some 0.3 ms on a CPU.
TALK_EVERY_S = 0.2
MOST_STEPS = 8  # of which one talk tells
LOSSES = tuple(f"loss/{number}" for number in range(MOST_STEPS))

Agree = Callable[[Mapping[str, float]], dict[str, float]]


@dataclass(frozen=True)
class _Step:
    progress: Progress
    learning_rate: float
    loss: Tensor  # []: this rank's part of the step's weighted mean
    norm: Tensor  # []
    seconds: float
    waited_s: float
    samples: int
    began: Moment
    reduced: Moment  # when the reduction over the ranks began

    def figures(self) -> tuple[float, ...]:
        """FIGURES of this step."""
        return self.seconds, self.waited_s, self.reduced.since(self.began), float(self.samples)


class Moment:
    """A point in the work of a device. A GPU's is read when the GPU has passed it, so that nobody waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._at = time.perf_counter()
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    def since(self, earlier: Moment) -> float:
        """Seconds between two moments."""
        if self._event is None or earlier._event is None:
            return self._at - earlier._at
        return float(earlier._event.elapsed_time(self._event)) / 1000


class Ledger:
    """Keeps each optimizer step until its figures have been summed over all ranks.

    Steps are told of in groups, as many as take TALK_EVERY_S on the slowest rank. All ranks find the same number, as
    they count it from what they have all been told.
    """

    def __init__(self, device: torch.device, rank: int, world_size: int) -> None:
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self._device = device
        self._rank = rank
        self._world_size = world_size
        self._group = 1  # steps between two exchanges
        self._loss = self._zero
        self._unread: deque[_Step] = deque()
        self._summing: list[_Step] = []
        self.restart_clock()

    def add_loss(self, part: Tensor, samples: int) -> None:
        """A micro-batch's part of the step's weighted mean loss, [], and how many samples it had."""
        self._loss = self._loss + part.detach()
        self._samples += samples

    def before_reduction(self) -> None:
        """From here on this rank's time goes also by waiting for the other ranks."""
        self._reduced = Moment(self._device)

    def add_wait(self, seconds: float) -> None:
        """Time spent waiting for the loader."""
        self._waited_s += seconds

    def close(self, progress: Progress, learning_rate: float, norm: Tensor) -> None:
        """The step that led to `progress` is complete."""
        seconds = time.perf_counter() - self._closed_at
        times = (seconds, self._waited_s, self._samples, self._began, self._reduced)
        self._unread.append(_Step(progress, learning_rate, self._loss, norm, *times))
        self._loss = self._zero
        self.restart_clock()

    def restart_clock(self) -> None:
        """What happens from now on counts for the next step; what happened before (sampling, say) does not."""
        self._waited_s, self._samples, self._closed_at = 0.0, 0, time.perf_counter()
        self._began = self._reduced = Moment(self._device)

    @property
    def due(self) -> bool:
        """True after the last step of a group, on all ranks at once."""
        return len(self._unread) > self._group

    def exchange(
        self, agree: Agree, told: Mapping[str, float], *, newest: bool = False
    ) -> tuple[dict[str, float], list[StepRecord]]:
        """Hand what is `told` and a group's figures to the agreement; return what it summed before, and those records.

        The newest step may still be computing on the device and is left for the next time unless `newest`.
        """
        summed = self._summing
        count = len(self._unread) - (0 if newest else 1)
        self._summing = [self._unread.popleft() for _ in range(min(count, MOST_STEPS))]
        losses = {name: float(step.loss) for name, step in zip(LOSSES, self._summing, strict=False)}
        sums = agree({**told, **losses, **self._own_figures()})
        if summed:
            slowest = max(sums[f"step_s/{rank}"] for rank in range(self._world_size))
            self._group = max(1, min(round(TALK_EVERY_S / slowest), MOST_STEPS))
        return sums, [_record(step, sums[name]) for name, step in zip(LOSSES, summed, strict=False)]

    @property
    def pending(self) -> bool:
        """True while a step's record is still to come."""
        return bool(self._unread or self._summing)

    def _own_figures(self) -> dict[str, float]:
        """This rank's figures, each the median over the steps of the group."""
        columns = zip(*(step.figures() for step in self._summing), strict=True)
        return {f"{name}/{self._rank}": median(column) for name, column in zip(FIGURES, columns, strict=False)}


def _record(step: _Step, loss: float) -> StepRecord:
    return StepRecord(
        step=step.progress.step,
        epoch=step.progress.epoch,
        samples_seen=step.progress.samples_seen,
        loss=loss,
        learning_rate=step.learning_rate,
        grad_norm=float(step.norm),
        seconds=step.seconds,
    )
