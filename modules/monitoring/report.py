"""What a run reports to the terminal, to events.jsonl, to TensorBoard and to Weights & Biases. Only rank 0 reports."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

from PIL import Image

from modules.config.hyperparameters import HyperParameter
from modules.files import printable
from modules.monitoring.background import BackgroundThread
from modules.monitoring.device_log import DeviceLog, Reading
from modules.monitoring.images import save_image
from modules.monitoring.performance_monitor import PerformanceMonitor
from modules.monitoring.report_protocol import StepRecord
from modules.monitoring.step_times import RankStepTimes
from modules.monitoring.tensorboard import STEP_TAGS, Histogram, TensorBoardWriter
from modules.monitoring.terminal import open_terminal
from modules.monitoring.wandb_log import WandbLog
from modules.run import EventLog, Failure, exit_code_of
from modules.run.endings import ENDINGS
from modules.run.folder.events import EventPlace

log = logging.getLogger("tandem")

_LOWEST_CLASSES = 5  # named after a validation
RANKS_EVERY_S = 2.0  # at most one `ranks` event
WINDOW = 50  # steps
LAST_STEPS: Final = 100  # whose mean loss is that of the end: a single step's is mostly noise


class RunReport:
    """The report of rank 0: terminal, log file, events.jsonl, TensorBoard scalars and images."""

    def __init__(
        self,
        events: EventLog,
        tensorboard_dir: Path | None,
        monitor: PerformanceMonitor | None = None,
        wandb: Callable[[Callable[[str], object]], WandbLog] | None = None,
        hyperparameters: Mapping[str, HyperParameter] = MappingProxyType({}),
    ) -> None:
        """TensorBoard shows `hyperparameters`; `wandb` makes the log of Weights & Biases, given where to warn."""
        self._events = events
        self._terminal = open_terminal()
        self._throughput = Throughput()
        self._final = FinalMetrics()
        self._total_samples = 0
        self._monitor = monitor
        self._is_backing_up = False
        self._ranks_written_at = 0.0
        self._steps_unwritten = 0  # by a `ranks` event
        self._devices = DeviceLog()
        self._drawings = BackgroundThread("drawings")
        self._wandb = None if wandb is None else wandb(self.warning)
        self._viewers: list[TensorBoardWriter | WandbLog] = [] if self._wandb is None else [self._wandb]
        self._tensorboard: TensorBoardWriter | None = None
        if tensorboard_dir is not None:
            self._tensorboard = TensorBoardWriter(tensorboard_dir, self.warning)
            self._tensorboard.add_hyperparameters(hyperparameters)
            self._viewers.append(self._tensorboard)

    def started(self, run_info: Mapping[str, object], first_step: int, total_steps: int, total_samples: int) -> None:
        """The description of the run (the `started` event), before its first step."""
        self._total_samples = total_samples
        if self._tensorboard is not None and first_step:
            self._tensorboard.add_missing(first_step, self._events.path)
        self._events.write("started", **run_info)
        if self._wandb is not None:
            self._wandb.start()
        if self._monitor is not None and isinstance(devices := run_info.get("devices"), list):
            self._monitor.devices = [str(each) for each in devices]
        self._terminal.start(first_step, total_steps)

    def phase(self, name: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
        """What the run is doing now; `done` of `total` if it can be counted, in bytes if `unit` is BYTES."""
        if self._monitor is not None:
            self._monitor.interrupt()
        counted = {} if total is None else {"done": done, "total": total, **({"unit": unit} if unit else {})}
        self._events.write("phase", phase=name, **counted)
        self._terminal.phase(name, done, total, unit)

    def data(self, lines: Sequence[str], concepts: Sequence[Mapping[str, object]] = ()) -> None:
        """What there is to train on, line by line, and the record of each concept."""
        self._events.write("data", lines=list(lines), concepts=list(concepts))
        for line in lines:
            self.note(line)

    def length(self, total_steps: int, total_samples: int, steps_per_epoch: int) -> None:
        """The run's data has changed, and so how long it goes on."""
        self._total_samples = total_samples
        self._events.write("length", total_steps=total_steps, steps_per_epoch=steps_per_epoch)
        self._terminal.length(total_steps)

    def step(self, record: StepRecord, *, shown: bool) -> None:
        """One optimizer step; an event and scalars only if `shown` (log_every)."""
        self._throughput.add(record.samples_seen, record.seconds)
        self._final.add_step(record.step, record.loss)
        speed = self._throughput.samples_per_s()
        eta_s = self._throughput.eta_s(self._total_samples - record.samples_seen)
        left = "" if eta_s is None else f", {timedelta(seconds=round(eta_s))} left"
        rate = f", {speed:.1f} samples/s{left}" if speed else ""  # known from the second step on
        self._terminal.step(record.step, f"loss {record.loss:.4f}{rate}")
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
        scalars = dict(zip(STEP_TAGS, (record.loss, record.learning_rate, record.grad_norm), strict=True))
        for viewer in self._viewers:
            viewer.add_scalars(scalars, record.step)

    def ranks(self, times: Sequence[RankStepTimes], readings: Callable[[], Mapping[int, Reading]], steps: int) -> None:
        """Step times of each rank (medians over the last `steps`), and the latest `readings` of its device by rank."""
        latest = readings()
        if self._monitor is not None and not self._is_backing_up:  # whose thread takes CPUs and disk from the loader
            for text in self._monitor.update(times, steps, latest):
                self.warning(text)
        self._steps_unwritten += steps
        now = time.monotonic()
        if now - self._ranks_written_at < RANKS_EVERY_S:
            return
        self._ranks_written_at = now
        rows = [{**each.event(), **latest.get(each.rank, {})} for each in times]
        for each, row in zip(times, rows, strict=True):
            for text in self._devices.add(each.rank, row, self._steps_unwritten):
                self.warning(text) if row.get("fault") else self.note(text)
        self._events.write("ranks", ranks=rows, steps=self._steps_unwritten)
        self._steps_unwritten = 0

    def histograms(self, compute: Callable[[], Mapping[str, Histogram]], step: int) -> None:
        """Weights and gradients of `step` by tag; where nothing shows them, `compute` is not called."""
        if self._viewers:
            found = compute()
            for viewer in self._viewers:
                viewer.add_histograms(found, step)

    def drawing(self, file: Path, draw: Callable[[], Image.Image], title: str, step: int) -> None:
        """An image that a thread draws and saves as `file`, whose event is written here in the order of all others."""
        place = self._events.reserve()

        def save() -> None:
            try:
                save_image(draw(), file, {"prompt": title, "step": step})
            except Exception as error:  # noqa: BLE001  # of a family's code, too: it must not end the thread
                self.warning(f"The {title} at step {step} could not be written: {error}. Training continues.", place)
            else:
                self.sample(file, title, step, place)

        self._drawings.submit(save)

    def sample(self, file: Path, prompt: str, step: int, place: EventPlace | None = None) -> None:
        """A sample was generated and saved as `file`."""
        self._events.write_at(place, "sample", file=str(file.absolute()), prompt=prompt, step=step)
        # one tag for all steps, so that TensorBoard shows them with a slider
        name = file.stem.removeprefix(f"step-{step:06d}-")
        for viewer in self._viewers:
            viewer.add_png(f"samples/{name}", file, step)

    def backing_up(self, step: int | None) -> None:
        """A backup of `step` is being written; None: no longer any. May be called from any thread."""
        self._is_backing_up = step is not None
        if self._tensorboard is not None and step is not None:
            self._tensorboard.flush()
        self._events.write("backing_up", step=step)

    def sync_events(self) -> None:
        """Before a backup is written: the steps before it survive a loss of power. May be called from any thread."""
        self._events.sync()

    def backup(self, folder: Path, step: int) -> None:
        """A backup is complete; may be called from any thread."""
        self._events.write("backup", path=str(folder.absolute()), step=step)

    def saved_model(self, folder: Path, step: int) -> None:
        """The model of `step` is saved in a folder of its own; the loss is the mean of the steps before."""
        self._events.write("saved_model", path=str(folder.absolute()), step=step, loss=self._final.mean_loss)

    def validation(
        self,
        name: str,
        loss: float,
        deviation: float,
        step: int,
        metrics: Mapping[str, float] = MappingProxyType({}),
        by_class: Mapping[str, float] = MappingProxyType({}),
        confusion: Sequence[Sequence[int]] = (),
    ) -> None:
        """The mean loss of held-out images with fixed noise and timesteps, and its standard deviation over them; `name`
        is "validation" or "test".

        `metrics` are numbers such as the accuracy, from 0 to 1; `by_class` is the accuracy of each class; `confusion`
        counts the samples of each class (row) by prediction.
        """
        more: dict[str, object] = {
            key: dict(values) for key, values in (("metrics", metrics), ("classes", by_class)) if values
        }
        if confusion:
            more["confusion"] = [list(row) for row in confusion]
        self._events.write("validation", set=name, loss=loss, deviation=deviation, step=step, **more)
        self._final.add_validation(name, loss, metrics)
        scalars = {f"{metric}/{name}": value for metric, value in metrics.items()}
        for viewer in self._viewers:
            viewer.add_scalars({f"loss/{name}": loss, **scalars}, step)
        shown = (f", {printable(each).replace('_', ' ')} {_shown(each, value)}" for each, value in metrics.items())
        listed = "".join(shown)
        spread = f" ± {deviation:.2g}" if deviation else ""  # one sample has none
        self.note(f"Step {step}: {name} loss {loss:.5g}{spread}{listed}.")
        if by_class:
            lowest = sorted(by_class.items(), key=lambda item: item[1])[:_LOWEST_CLASSES]
            self.note(f"  lowest: {', '.join(f'{printable(name)} {value:.1%}' for name, value in lowest)}")

    def note(self, text: str) -> None:
        """A line for the terminal and the log."""
        log.info(text)
        self._terminal.line(text)

    def warning(self, text: str, place: EventPlace | None = None) -> None:
        """Something the user should know; the run continues."""
        log.warning(text)
        self._events.write_at(place, "warning", message=text)
        self._terminal.line(f"Warning: {text}")

    def waiting(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Ranks have waited for others for a while, which is not an error; may be called from any thread."""
        self._events.write("waiting", ranks=rows)

    def failed(self, failure: Failure) -> None:
        """The run has failed: its last two events are `error` and `finished`."""
        self._summarize()
        self._events.write("error", **failure.event_fields())
        self._end("failed", exit_code_of(failure.kind))

    def finished(self, reason: str, exit_code: int) -> None:
        """The last event of a run, after what its devices have done on average."""
        self._summarize()
        if self._tensorboard is not None and reason in ENDINGS and ENDINGS[reason].is_complete:
            self._tensorboard.add_success()
        self._end(reason, exit_code)

    def _summarize(self) -> None:
        if scalars := self._final.scalars(self._throughput.samples_per_s()):
            for viewer in self._viewers:
                viewer.add_scalars(scalars, self._final.step)
        if rows := self._devices.summary():
            self._events.write("ranks_summary", ranks=rows)
            for line in self._devices.lines():
                self.note(line)

    def _end(self, reason: str, exit_code: int) -> None:
        self._terminal.close()
        self._events.write("finished", reason=reason, exit_code=exit_code)

    def close(self) -> None:
        """Write what is still to be drawn or buffered."""
        self._terminal.close()
        self._drawings.close()
        for viewer in self._viewers:
            viewer.close()
        self._events.close()


def _shown(metric: str, value: float) -> str:
    """An accuracy in percent, any other metric as it is."""
    return f"{value:.2%}" if "accuracy" in metric else f"{value:.5g}"


class Throughput:
    """A moving window over the last steps. Pauses between steps (sampling, saving) do not count."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=WINDOW)
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._seen: int | None = None

    def add(self, samples_seen: int, seconds: float) -> None:
        """Add a step that took `seconds`, with `samples_seen` samples done after it."""
        if self._seen is not None:
            self._samples.append(samples_seen - self._seen)
            self._seconds.append(seconds)
        self._seen = samples_seen

    def samples_per_s(self) -> float:
        """Samples per second; 0 until the second step, because the first one includes the warm-up."""
        seconds = sum(self._seconds)
        return sum(self._samples) / seconds if seconds > 0 else 0.0

    def eta_s(self, remaining_samples: int) -> float | None:
        """Seconds for `remaining_samples` at the current speed; None while it is unknown."""
        speed = self.samples_per_s()
        return remaining_samples / speed if speed > 0 else None


class FinalMetrics:
    """Follows steps and validations since the last start; memory does not grow with their number."""

    def __init__(self) -> None:
        self.step = 0  # the last one
        self._losses: deque[float] = deque(maxlen=LAST_STEPS)
        self._validations: dict[str, float] = {}  # by tag

    def add_step(self, step: int, loss: float) -> None:
        """A step that is done; a loss that is not finite is left out."""
        self.step = step
        if math.isfinite(loss):
            self._losses.append(loss)

    def add_validation(self, name: str, loss: float, metrics: Mapping[str, float]) -> None:
        """The latest of the set `name`, "validation" or "test", with metrics such as the accuracy."""
        found = {f"final/{name}_loss": loss, **{f"final/{name}_{metric}": each for metric, each in metrics.items()}}
        self._validations |= {tag: value for tag, value in found.items() if math.isfinite(value)}
        if math.isfinite(loss):
            best = f"final/best_{name}_loss"
            self._validations[best] = min(loss, self._validations.get(best, math.inf))

    @property
    def mean_loss(self) -> float | None:
        """Of the last steps; None before the first one."""
        return math.fsum(self._losses) / len(self._losses) if self._losses else None

    def scalars(self, samples_per_s: float) -> dict[str, float]:
        """By tag; empty before the first step."""
        mean = self.mean_loss
        if mean is None:
            return {}
        return {"final/loss": mean, **self._validations, "final/samples_per_s": samples_per_s}
