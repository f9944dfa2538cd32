"""What is known of a run, kept up to date event by event and bounded in memory however long the run is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from app.run_facts import Facts, Finished, Message, Phase, SampleFile, Spread, Step, number, rank_row, text, whole
from app.series import MOST_POINTS, Series
from modules.run import Event

MOST_SAMPLES: Final = 20_000
MOST_MESSAGES: Final = 500
MOST_RANKS: Final = 4096

_APART: Final = 1024  # points
STEP_FIGURES: Final = ("loss", "lr", "grad_norm", "samples_per_s")


class RunView:
    """Written by the follower, read by the window; both hold `lock` meanwhile. `version` changes with every event."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 0
        self._forget()

    def restart(self) -> None:
        """Forget everything: the file turned out to be another one."""
        with self.lock:
            self._forget()
            self.version += 1

    def apply(self, events: Iterable[Event]) -> None:
        """Take in events; what they lack, or say in a wrong form, is left out."""
        with self.lock:
            for event in events:
                act = self._acts.get(str(event.get("type")))
                if act is None:
                    self.unknown += 1
                else:
                    act(event, number(event.get("t")) or self.time)
            self.version += 1

    def _forget(self) -> None:
        self.facts: Facts | None = None
        self.phase: Phase | None = None
        self.step: Step | None = None
        self.finished: Finished | None = None
        self.error: Message | None = None  # of the present start
        self.time = 0.0  # of the last event
        self.first_time: float | None = None
        # of different lengths, so that they are not all merged at the same step, for which the window would wait
        self.figures = {name: Series(MOST_POINTS - _APART * place) for place, name in enumerate(STEP_FIGURES)}
        self.measured: dict[str, Series] = {}  # validation and test loss
        self.ranks: list[dict[str, float | str]] = []
        self.ranks_count = 0  # how often they were told
        self.spreads: list[dict[str, Spread]] = []
        self.samples: deque[SampleFile] = deque(maxlen=MOST_SAMPLES)
        self.samples_count = 0
        self.backups: deque[Message] = deque(maxlen=MOST_MESSAGES)
        self.backup_step: int | None = None
        self.warnings: deque[Message] = deque(maxlen=MOST_MESSAGES)
        self.errors: deque[Message] = deque(maxlen=MOST_MESSAGES)
        self.unknown = 0
        self._acts: dict[str, Callable[[Event, float], None]] = {
            "started": self._started,
            "phase": self._phase,
            "step": self._step,
            "ranks": self._ranks,
            "sample": self._sample,
            "backup": self._backup,
            "validation": self._validation,
            "warning": self._warning,
            "error": self._error,
            "finished": self._finished,
        }

    def _tick(self, time: float) -> None:
        self.time = time
        if self.first_time is None and time > 0:
            self.first_time = time

    def _started(self, event: Event, time: float) -> None:
        self._tick(time)
        self.finished, self.error = None, None
        config = event.get("config")
        devices = event.get("devices")
        self.facts = Facts(
            time,
            config if isinstance(config, dict) else {},
            tuple(text(each) for each in devices[:MOST_RANKS]) if isinstance(devices, list) else (),
            text(event.get("backend")),
            whole(event.get("total_steps")),
            whole(event.get("steps_per_epoch")),
            number(event.get("learning_rate")),
            text(event.get("host")),
        )
        self.ranks, self.spreads = [], []

    def _phase(self, event: Event, time: float) -> None:
        self._tick(time)
        name = text(event.get("phase"))
        if name == "loading":  # the first thing that a start says, a resumed one too
            self.finished, self.error, self.step = None, None, None
        counted = whole(event.get("done")), whole(event.get("total")), text(event.get("unit"))
        self.phase = Phase(name, time, *counted)

    def _step(self, event: Event, time: float) -> None:
        step = whole(event.get("step"))
        if step is None:
            self.unknown += 1
            return
        self._tick(time)
        values = {name: number(event.get(name)) for name in (*STEP_FIGURES, "eta_s")}
        if self.step is None or step <= self.step.step:
            self._forget_from(step)
        for name in STEP_FIGURES:
            value = values[name]
            if value is not None and (value or name != "samples_per_s"):  # 0 means that it is not known yet
                self.figures[name].add(step, time, value)
        self.step = Step(
            step,
            time,
            whole(event.get("epoch")),
            values["loss"],
            values["lr"],
            values["samples_per_s"],
            values["grad_norm"],
            values["eta_s"],
        )

    def _forget_from(self, step: int) -> None:
        """A run that goes on from a backup does the steps after it again."""
        for series in (*self.figures.values(), *self.measured.values()):
            series.forget_from(step)

    def _ranks(self, event: Event, time: float) -> None:
        self._tick(time)
        rows = event.get("ranks")
        if not isinstance(rows, list):
            return
        self.ranks = [rank_row(row) for row in rows[:MOST_RANKS]]
        self.ranks_count += 1
        if len(self.spreads) != len(self.ranks):
            self.spreads = [{} for _ in self.ranks]
        for row, spreads in zip(self.ranks, self.spreads, strict=True):
            for name, value in row.items():
                if isinstance(value, float):
                    spreads.setdefault(name, Spread()).add(value)

    def _sample(self, event: Event, time: float) -> None:
        self._tick(time)
        file, step = event.get("file"), whole(event.get("step"))
        if isinstance(file, str) and step is not None:
            self.samples_count += 1
            self.samples.append(SampleFile(text(file), text(event.get("prompt")), step, self.samples_count))

    def _backup(self, event: Event, time: float) -> None:
        self._tick(time)
        step = whole(event.get("step"))
        if step is not None:
            self.backup_step = step
            self.backups.append(Message(time, "backup", text(event.get("path"))))

    def _validation(self, event: Event, time: float) -> None:
        self._tick(time)
        step, loss = whole(event.get("step")), number(event.get("loss"))
        name = text(event.get("set")) or "validation"
        if step is not None and loss is not None and (name in self.measured or len(self.measured) < 8):
            self.measured.setdefault(name, Series()).add(step, time, loss)

    def _warning(self, event: Event, time: float) -> None:
        self._tick(time)
        self.warnings.append(Message(time, "warning", text(event.get("message"))))

    def _error(self, event: Event, time: float) -> None:
        self._tick(time)
        message, advice, host, kind = (text(event.get(name)) for name in ("message", "advice", "host", "kind"))
        self.error = Message(time, "error", message, advice, whole(event.get("rank")), host, kind)
        self.errors.append(self.error)

    def _finished(self, event: Event, time: float) -> None:
        self._tick(time)
        self.finished = Finished(text(event.get("reason")), whole(event.get("exit_code")), time)
