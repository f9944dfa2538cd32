"""How the trainer reports: the protocol, a step's record, and the report of the ranks that have none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from modules.monitoring.device_log import Reading
from modules.monitoring.step_times import RankStepTimes
from modules.monitoring.tensorboard import Histogram
from modules.run import Failure

log = logging.getLogger("tandem")


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, over all ranks."""

    step: int
    epoch: int
    samples_seen: int  # after the step
    loss: float  # weighted mean over the samples of the step
    learning_rate: float
    grad_norm: float  # before clipping
    seconds: float  # on rank 0
    out_of_memory: bool = False  # on some rank: every rank skipped the step


class Report(Protocol):
    """How the trainer reports progress. Methods do not block on other ranks."""

    def started(
        self, run_info: Mapping[str, object], first_step: int, total_steps: int, total_samples: int
    ) -> None: ...
    def phase(self, name: str, done: int | None = None, total: int | None = None, unit: str = "") -> None: ...
    def data(self, lines: Sequence[str], concepts: Sequence[Mapping[str, object]] = ...) -> None: ...
    def length(self, total_steps: int, total_samples: int, steps_per_epoch: int) -> None: ...
    def step(self, record: StepRecord, *, shown: bool) -> None: ...
    def ranks(
        self, times: Sequence[RankStepTimes], readings: Callable[[], Mapping[int, Reading]], steps: int
    ) -> None: ...
    def histograms(self, compute: Callable[[], Mapping[str, Histogram]], step: int) -> None: ...
    def sample(self, file: Path, prompt: str, step: int) -> None: ...
    def drawing(self, file: Path, draw: Callable[[], Image.Image], title: str, step: int) -> None: ...
    def backing_up(self, step: int | None) -> None: ...
    def sync_events(self) -> None: ...
    def backup(self, folder: Path, step: int) -> None: ...
    def saved_model(self, folder: Path, step: int) -> None: ...
    def validation(
        self,
        name: str,
        loss: float,
        deviation: float,
        step: int,
        metrics: Mapping[str, float] = ...,
        by_class: Mapping[str, float] = ...,
        confusion: Sequence[Sequence[int]] = ...,
    ) -> None: ...
    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def waiting(self, rows: Sequence[Mapping[str, object]]) -> None: ...
    def failed(self, failure: Failure) -> None: ...
    def finished(self, reason: str, exit_code: int) -> None: ...
    def close(self) -> None: ...


class SilentReport:
    """The report of the other ranks: nothing but warnings in the rank's own log file."""

    def warning(self, text: str) -> None:
        """Write to log/rank-N.txt."""
        log.warning(text)

    def _ignore(self, *arguments: Any, **options: Any) -> None:  # Any: subclasses narrow it
        """Report nothing."""

    started = phase = data = length = step = ranks = sample = drawing = backing_up = sync_events = backup = _ignore
    saved_model = validation = histograms = note = waiting = failed = finished = close = _ignore
