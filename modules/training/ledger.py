"""Figures of the steps under way: they stay on the device, and are read and summed over the ranks a step late."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.data.progress import Progress
from modules.monitoring import StepRecord

# Per rank and step: seconds in all, those of waiting for the loader, those until the gradients begin to wait for the
# other ranks (the others are what a reduction makes equal everywhere), and samples.
FIGURES = ("step_s", "data_s", "own_s", "samples")

Agree = Callable[[Mapping[str, float]], dict[str, float]]


@dataclass(frozen=True)
class _Step:
    progress: Progress
    learning_rate: float
    loss: Tensor  # []: this rank's part of the step's weighted mean
    norm: Tensor  # []
    figures: dict[str, float]
    began: Moment
    reduced: Moment  # when the reduction over the ranks began


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
    """Keeps each optimizer step until its figures have been summed over all ranks."""

    def __init__(self, device: torch.device, rank: int) -> None:
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self._device = device
        self._rank = rank
        self._loss = self._zero
        self._unread: deque[_Step] = deque()
        self._summing: _Step | None = None
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
        step_s = time.perf_counter() - self._closed_at
        figures = {"step_s": step_s, "data_s": self._waited_s, "samples": float(self._samples)}
        self._unread.append(_Step(progress, learning_rate, self._loss, norm, figures, self._began, self._reduced))
        self._loss = self._zero
        self.restart_clock()

    def restart_clock(self) -> None:
        """What happens from now on counts for the next step; what happened before (sampling, say) does not."""
        self._waited_s, self._samples, self._closed_at = 0.0, 0, time.perf_counter()
        self._began = self._reduced = Moment(self._device)

    def exchange(
        self, agree: Agree, wishes: Mapping[str, float], *, newest: bool = False
    ) -> tuple[dict[str, float], StepRecord | None]:
        """Hand `wishes` and one step's figures to the agreement; return what it summed before, and that step's record.

        The newest step may still be computing on the device and is left for the next time unless `newest`.
        """
        summed, self._summing = self._summing, None
        values = dict(wishes)
        if len(self._unread) > (0 if newest else 1):
            self._summing = self._unread.popleft()
            values["loss"] = float(self._summing.loss)
            figures = {**self._summing.figures, "own_s": self._summing.reduced.since(self._summing.began)}
            values.update({f"{name}/{self._rank}": figures[name] for name in FIGURES})
        sums = agree(values)
        return sums, None if summed is None else _record(summed, sums["loss"])

    @property
    def pending(self) -> bool:
        """True while a step's record is still to come."""
        return bool(self._unread) or self._summing is not None


def _record(step: _Step, loss: float) -> StepRecord:
    return StepRecord(
        step=step.progress.step,
        epoch=step.progress.epoch,
        samples_seen=step.progress.samples_seen,
        loss=loss,
        learning_rate=step.learning_rate,
        grad_norm=float(step.norm),
        seconds=step.figures["step_s"],
    )
