"""The state of a run, built event by event; memory stays bounded however long the run is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from modules.run.folder.event_reader import event_time
from modules.run.folder.events import Event
from modules.run.view.event_records import (
    Finished,
    Message,
    Phase,
    RunInfo,
    SampleFile,
    Step,
    parse_facts,
    parse_float,
    parse_int,
    parse_rank,
    parse_text,
    parse_texts,
)
from modules.run.view.rank_summary import PEAK_SHARE, MetricSummary, add_reading, is_peak_known
from modules.run.view.series import MAX_POINTS, Series

MAX_SAMPLES: Final = 20_000
MAX_MESSAGES: Final = 500
MAX_RANKS: Final = 4096
MAX_JOINING: Final = 6
MAX_DATA_LINES: Final = 150
MAX_EVALUATIONS: Final = 8  # curves

_LENGTH_STEP: Final = 1024  # points
STEP_METRICS: Final = ("loss", "lr", "grad_norm", "samples_per_s")


class RunView:
    """Written by the follower, read by the window, both under `lock`. `version` changes with every event."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 0
        self._reset()

    @property
    def position(self) -> int | None:
        """The step the run is at: its last, or after a resume that of the backup it goes on from. Take the lock."""
        return self.backup_step if self.step is None else self.step.step

    @property
    def duration_s(self) -> float:
        """How long the run has been at work: without the time between an end and the next start. Take the lock."""
        return 0.0 if self.first_time is None else max(0.0, self.time - self.first_time - self._idle_s)

    @property
    def last_loss(self) -> float | None:
        """Of the last step, also of an earlier start. Take the lock."""
        if self.step is not None:
            return self.step.loss
        return self.metrics["loss"].last

    def restart(self) -> None:
        """Reset everything: the events file was replaced."""
        with self.lock:
            self._reset()
            self.version += 1

    def apply(self, events: Iterable[Event]) -> None:
        """Apply events; missing or malformed fields are ignored."""
        with self.lock:
            for event in events:
                handler = self._handlers.get(str(event.get("type")))
                if handler is not None:
                    handler(event, event_time(event) or self.time)
            self.version += 1

    def _reset(self) -> None:
        self.run_info: RunInfo | None = None
        self.phase: Phase | None = None
        self.ended: dict[str, float] = {}  # when each phase, and "backup", ended last
        self.step: Step | None = None
        self.finished: Finished | None = None
        self.error: Message | None = None  # since the last start
        self.cause_of_end = ""  # of a run that stops because another machine was stopped
        self.time = 0.0  # of the last event, in seconds since the epoch
        self.first_time: float | None = None
        self._idle_s = 0.0  # between the last event of each start and the first of the next
        # different lengths, so that they are not all compacted at the same step, which would block the window
        self.metrics = {name: Series(MAX_POINTS - _LENGTH_STEP * index) for index, name in enumerate(STEP_METRICS)}
        self.eval_losses: dict[str, Series] = {}  # validation and test loss
        self.eval_metrics: dict[str, Series] = {}  # such as "accuracy" of the validation, and "test accuracy"
        self.ranks: list[dict[str, float | str]] = []
        self.ranks_count = 0  # changes with `ranks`
        self._summaries: list[dict[str, MetricSummary]] = []  # of each rank, by metric
        self.samples: deque[SampleFile] = deque(maxlen=MAX_SAMPLES)
        self.samples_count = 0
        self.backup_step: int | None = None
        self.saved_models: dict[
            int, float | None
        ] = {}  # the mean loss before each that was saved along the way, by step
        self.data: tuple[str, ...] = ()  # lines about the data set
        self.backing_up: int | None = None  # the step of a backup that is being written
        self.warnings: deque[Message] = deque(maxlen=MAX_MESSAGES)
        self.joining: deque[Message] = deque(maxlen=MAX_JOINING)  # who has joined, and who is missing
        self.all_joined = False
        self.joins_by_hand = True  # whether a machine joins that the run does not start itself
        self._handlers: dict[str, Callable[[Event, float], None]] = {
            "started": self._started,
            "phase": self._phase,
            "data": self._data,
            "length": self._length,
            "step": self._step,
            "ranks": self._ranks,
            "sample": self._sample,
            "backing_up": self._backing_up,
            "backup": self._backup,
            "saved_model": self._saved_model,
            "validation": self._validation,
            "warning": self._warning,
            "joining": self._joining,
            "error": self._error,
            "finished": self._finished,
        }

    def _set_time(self, time: float) -> None:
        self.time = time
        if self.first_time is None and time > 0:
            self.first_time = time

    def _started(self, event: Event, time: float) -> None:
        self._set_time(time)
        self.finished, self.error = None, None
        config = event.get("config")
        devices = event.get("devices")
        self.run_info = RunInfo(
            time,
            config if isinstance(config, dict) else {},
            tuple(parse_text(each) for each in devices[:MAX_RANKS]) if isinstance(devices, list) else (),
            parse_int(event.get("total_steps")),
            parse_text(event.get("host")),
            parse_facts(event),
            parse_texts(event.get("versions")),
        )
        self._clear_ranks()

    def _length(self, event: Event, time: float) -> None:
        self._set_time(time)
        if self.run_info is not None:
            total, per_epoch = (parse_int(event.get(name)) for name in ("total_steps", "steps_per_epoch"))
            facts = {**dict(self.run_info.facts), **dict(parse_facts({"steps_per_epoch": per_epoch}))}
            self.run_info = replace(self.run_info, total_steps=total, facts=tuple(facts.items()))

    def _phase(self, event: Event, time: float) -> None:
        name, before = parse_text(event.get("phase")), self.time
        self._set_time(time)
        if name == "loading":  # the first event of each start, resumed ones too
            self._idle_s += max(0.0, time - before) if before else 0.0
            self.finished, self.error, self.step, self.backing_up = None, None, None, None
            self.cause_of_end = ""
            self._clear_ranks()
        if self.phase is not None and self.phase.name != name:
            self.ended[self.phase.name] = time
        counted = parse_int(event.get("done")), parse_int(event.get("total")), parse_text(event.get("unit"))
        self.phase = Phase(name, time, *counted)

    def _clear_ranks(self) -> None:
        """Before a start has measured anything."""
        self.ranks, self._summaries = [], []
        self.ranks_count += 1

    def _data(self, event: Event, time: float) -> None:
        self._set_time(time)
        lines = event.get("lines")
        if isinstance(lines, list):
            self.data = tuple(parse_text(line) for line in lines[:MAX_DATA_LINES])

    def _step(self, event: Event, time: float) -> None:
        step = parse_int(event.get("step"))
        if step is None:
            return
        self._set_time(time)
        values = {name: parse_float(event.get(name)) for name in (*STEP_METRICS, "eta_s")}
        if self.step is None or step <= self.step.step:
            # drop points from this step on: a resumed run repeats the steps after its backup
            for series in (*self.metrics.values(), *self.eval_losses.values(), *self.eval_metrics.values()):
                series.truncate_from(step)
        for name in STEP_METRICS:
            value = values[name]
            if value is not None and (value or name != "samples_per_s"):  # 0 means not known yet
                self.metrics[name].add(step, time, value)
        self.step = Step(
            step,
            time,
            parse_int(event.get("epoch")),
            values["loss"],
            values["samples_per_s"],
            values["eta_s"],
        )

    def _ranks(self, event: Event, time: float) -> None:
        self._set_time(time)
        rows = event.get("ranks")
        if not isinstance(rows, list):
            return
        self.ranks = [parse_rank(row) for row in rows[:MAX_RANKS]]
        self.ranks_count += 1
        if len(self._summaries) != len(self.ranks):
            self._summaries = [{} for _ in self.ranks]
        for row, summaries in zip(self.ranks, self._summaries, strict=True):
            for name, value in row.items():
                if isinstance(value, float):
                    add_reading(summaries, name, value, parse_int(event.get("steps")) or 1)
        if not is_peak_known(self._summaries):
            for row in self.ranks:
                row.pop(PEAK_SHARE, None)

    @property
    def rank_summaries(self) -> list[dict[str, MetricSummary]]:
        """Of each rank, what is known of its metrics over the run."""
        left_out = () if is_peak_known(self._summaries) else (PEAK_SHARE,)
        return [{name: each for name, each in rank.items() if name not in left_out} for rank in self._summaries]

    def _sample(self, event: Event, time: float) -> None:
        self._set_time(time)
        file, step = event.get("file"), parse_int(event.get("step"))
        if isinstance(file, str) and step is not None:
            self.samples_count += 1
            self.samples.append(SampleFile(parse_text(file), parse_text(event.get("prompt")), step, self.samples_count))

    def _backing_up(self, event: Event, time: float) -> None:
        self._set_time(time)
        self.backing_up = parse_int(event.get("step"))

    def _backup(self, event: Event, time: float) -> None:
        self._set_time(time)
        step = parse_int(event.get("step"))
        if step is not None:
            self.backup_step, self.ended["backup"] = step, time

    def _saved_model(self, event: Event, time: float) -> None:
        self._set_time(time)
        step = parse_int(event.get("step"))
        if step is not None and (step in self.saved_models or len(self.saved_models) < MAX_SAMPLES):
            self.saved_models[step] = parse_float(event.get("loss"))

    def _validation(self, event: Event, time: float) -> None:
        self._set_time(time)
        step, loss = parse_int(event.get("step")), parse_float(event.get("loss"))
        name = parse_text(event.get("set")) or "validation"
        if step is None:
            return
        if loss is not None:
            _add_point(self.eval_losses, name, step, time, loss)
        metrics = event.get("metrics")
        for metric, given in metrics.items() if isinstance(metrics, dict) else ():
            title = parse_text(metric).replace("_", " ")
            if title and (value := parse_float(given)) is not None:
                _add_point(self.eval_metrics, title if name == "validation" else f"{name} {title}", step, time, value)

    def _warning(self, event: Event, time: float) -> None:
        self._set_time(time)
        message = Message(time, "warning", parse_text(event.get("message")))
        if event.get("is_cause_of_end") is True:
            self.cause_of_end = message.text
        # a run that is resumed repeats what it has warned of before
        if same := next((each for each in self.warnings if each.text == message.text), None):
            self.warnings.remove(same)
        self.warnings.append(message)

    def _joining(self, event: Event, time: float) -> None:
        # not the time of the view: the phase and the end of an earlier start are still there
        self.joining.append(Message(time, "joining", parse_text(event.get("message"))))
        self.all_joined = event.get("missing") == []
        if (by_hand := parse_int(event.get("by_hand"))) is not None:
            self.joins_by_hand = by_hand > 0

    def _error(self, event: Event, time: float) -> None:
        self._set_time(time)
        message, advice, host, kind = (parse_text(event.get(name)) for name in ("message", "advice", "host", "kind"))
        self.error = Message(time, "error", message, advice, parse_int(event.get("rank")), host, kind)

    def _finished(self, event: Event, time: float) -> None:
        self._set_time(time)
        self.finished = Finished(parse_text(event.get("reason")), parse_int(event.get("exit_code")), time)


def _add_point(curves: dict[str, Series], name: str, step: int, time: float, value: float) -> None:
    """To the curve of this name, unless a run has more of them than a plot can show."""
    if name in curves or len(curves) < MAX_EVALUATIONS:
        curves.setdefault(name, Series()).add(step, time, value)
