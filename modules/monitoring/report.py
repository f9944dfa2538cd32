"""What a run tells: to the terminal, to events.jsonl and to TensorBoard. Ranks other than the first tell nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from PIL import Image

from modules.monitoring.advice import Advice, RankFigures
from modules.monitoring.board import Board
from modules.monitoring.terminal import terminal
from modules.monitoring.throughput import Throughput
from modules.run import EventLog, Failure, exit_code_of

log = logging.getLogger("tandem")

RANKS_EVERY_S = 2.0
Reading: TypeAlias = Mapping[str, float | None]  # a figure of a device, named with its unit -> its value


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, with figures of all ranks together."""

    step: int
    epoch: int
    samples_seen: int
    loss: float
    learning_rate: float
    grad_norm: float
    seconds: float  # on rank 0


class Report(Protocol):
    """Where the trainer says what happens."""

    def started(self, facts: Mapping[str, object], first_step: int, total_steps: int, total_samples: int) -> None: ...
    def phase(self, name: str, done: int | None = None, total: int | None = None, unit: str = "") -> None: ...
    def step(self, record: StepRecord, *, shown: bool) -> None: ...
    def ranks(
        self, figures: Sequence[RankFigures], readings: Callable[[], Mapping[int, Reading]], steps: int
    ) -> None: ...
    def sample(self, file: Path, prompt: str, step: int) -> None: ...
    def backup(self, folder: Path, step: int) -> None: ...
    def validation(self, name: str, loss: float, step: int) -> None: ...
    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def waiting(self, rows: Sequence[Mapping[str, object]]) -> None: ...
    def failed(self, failure: Failure) -> None: ...
    def finished(self, reason: str, exit_code: int) -> None: ...
    def close(self) -> None: ...


class SilentReport:
    """The report of a rank that must not tell: only its warnings go to its own log."""

    def started(self, facts: Mapping[str, object], first_step: int, total_steps: int, total_samples: int) -> None:
        """Nothing."""

    def phase(self, name: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
        """Nothing."""

    def step(self, record: StepRecord, *, shown: bool) -> None:
        """Nothing."""

    def ranks(self, figures: Sequence[RankFigures], readings: Callable[[], Mapping[int, Reading]], steps: int) -> None:
        """Nothing."""

    def sample(self, file: Path, prompt: str, step: int) -> None:
        """Nothing."""

    def backup(self, folder: Path, step: int) -> None:
        """Nothing."""

    def validation(self, name: str, loss: float, step: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def warning(self, text: str) -> None:
        """Into log/rank-N.txt."""
        log.warning(text)

    def waiting(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Nothing."""

    def failed(self, failure: Failure) -> None:
        """Nothing."""

    def finished(self, reason: str, exit_code: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class RunReport:
    """The report of rank 0: one progress bar, events.jsonl, TensorBoard scalars and pictures."""

    def __init__(
        self,
        events: EventLog,
        tensorboard_dir: Path | None,
        first_rank_log: logging.Logger = log,
        advice: Advice | None = None,
    ) -> None:
        self._events = events
        self._log = first_rank_log
        self._terminal = terminal()
        self._throughput = Throughput()
        self._total_samples = 0
        self._advice = advice
        self._ranks_told_at = 0.0
        self._board = None if tensorboard_dir is None else Board(tensorboard_dir)

    def started(self, facts: Mapping[str, object], first_step: int, total_steps: int, total_samples: int) -> None:
        """The run's facts, before its first step."""
        self._total_samples = total_samples
        self._events.write("started", **facts)
        self._terminal.begin(first_step, total_steps)

    def phase(self, name: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
        """What the run is doing now; `done` of `total` where it can be counted, in bytes where `unit` is BYTES."""
        counted = {} if total is None else {"done": done, "total": total, **({"unit": unit} if unit else {})}
        self._events.write("phase", phase=name, **counted)
        self._terminal.phase(name, done, total, unit)

    def step(self, record: StepRecord, *, shown: bool) -> None:
        """One optimizer step; an event and scalars only where `shown` (log_every)."""
        self._throughput.add(record.samples_seen, record.seconds)
        speed = self._throughput.samples_per_s()
        eta_s = self._throughput.eta_s(self._total_samples - record.samples_seen)
        left = "" if eta_s is None else f", {timedelta(seconds=round(eta_s))} to go"
        fast = f", {speed:.1f} samples/s{left}" if speed else ""  # known from the second step on
        self._terminal.step(record.step, f"loss {record.loss:.4f}{fast}")
        if not shown:
            return
        self._events.write(
            "step",
            step=record.step,
            epoch=record.epoch,
            samples_seen=record.samples_seen,
            loss=record.loss,
            lr=record.learning_rate,
            samples_per_s=round(speed, 3),
            grad_norm=record.grad_norm,
            eta_s=eta_s,
        )
        if self._board is not None:
            figures = {"loss/train": record.loss, "lr/model": record.learning_rate, "gradient/norm": record.grad_norm}
            self._board.add_figures(figures, record.step)

    def ranks(self, figures: Sequence[RankFigures], readings: Callable[[], Mapping[int, Reading]], steps: int) -> None:
        """How each rank spent the last `steps`, and the newest `readings` of its device; an event each two seconds."""
        for text in self._advice.look(figures, steps) if self._advice else []:
            self.warning(text)
        now = time.monotonic()
        if now - self._ranks_told_at < RANKS_EVERY_S:
            return
        self._ranks_told_at = now
        latest = readings()
        self._events.write("ranks", ranks=[{**asdict(each), **latest.get(each.rank, {})} for each in figures])

    def sample(self, file: Path, prompt: str, step: int) -> None:
        """A picture was drawn."""
        self._events.write("sample", file=str(file.resolve()), prompt=prompt, step=step)
        if self._board is not None:
            with Image.open(file) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._board.add_picture(f"samples/{file.stem}", pixels, step)

    def backup(self, folder: Path, step: int) -> None:
        """A backup is complete."""
        self._events.write("backup", path=str(folder.resolve()), step=step)

    def validation(self, name: str, loss: float, step: int) -> None:
        """The loss on pictures that are not learned from, on fixed noise and timesteps; `name` validation or test."""
        self._events.write("validation", set=name, loss=loss, step=step)
        if self._board is not None:
            self._board.add_figures({f"loss/{name}": loss}, step)
        self.note(f"Step {step}: {name} loss {loss:.5f}.")

    def note(self, text: str) -> None:
        """A line for the person at the terminal."""
        self._log.info(text)
        self._terminal.line(text)

    def warning(self, text: str) -> None:
        """Something the person should know; the run goes on."""
        self._log.warning(text)
        self._events.write("warning", message=text)
        self._terminal.line(f"Warning: {text}")

    def waiting(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Ranks have waited for others for a while, which is no fault as such; may be called from any thread."""
        self._events.write("waiting", ranks=rows)

    def failed(self, failure: Failure) -> None:
        """The run has failed, and nobody else will write the last events."""
        self._events.write("error", **failure.event())
        self.finished("failed", exit_code_of(failure.kind))

    def finished(self, reason: str, exit_code: int) -> None:
        """The last event of a run."""
        self._terminal.close()
        self._events.write("finished", reason=reason, exit_code=exit_code)

    def close(self) -> None:
        """Write what is still buffered."""
        self._terminal.close()
        if self._board is not None:
            self._board.close()
        self._events.close()
