"""When a run will do what, before it starts: epochs, validations, samples, backups and models over its steps."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.curves.run_length import Length, RunLength
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import card, text, wrap_within
from modules.config import Interval, TrainConfig, dump, effective_batch
from modules.files import FileFault, printable, read_json
from modules.run.folder.event_reader import head_and_tail
from modules.run.folder.run_folder import RunFolder, newest_first
from modules.run.format_duration import in_words
from modules.run.remote.run_copy import read_copy
from modules.run.view.run_view import RunView

_LANE: Final = 26  # this and all sizes below in unscaled pixels
_TITLES: Final = 92
_COUNTS: Final = 104
_TICK: Final = 12
_CLOSEST: Final = 4  # ticks that are closer are drawn as a band
_AXIS: Final = 24
_MOST_RUNS: Final = 12  # whose settings are compared, the newest first
# Settings on which the rate of a run depends most; one that differs in another is near enough.
_PACE: Final = (
    *("family", "base_model", "method", "resolution", "batch_size", "gradient_accumulation_steps"),
    *("global_batch_size", "precision", "gradient_checkpointing", "compile", "block_offload"),
    *("device", "enable_multi_gpu", "training_mode", "device_ids", "num_nodes", "world_size"),
)
_UNKNOWN: Final = "Known once there are images and all settings are valid."


@dataclass(frozen=True)
class Rate:
    """Samples/s at the end of the run of this name."""

    samples_per_s: float
    run: str


@dataclass(frozen=True)
class Lane:
    """Something that happens after each `every` steps, and after the last one if `at_end`; `every` is None if it is not
    known, `said` then says what is."""

    title: str
    every: float | None
    at_end: bool = False
    said: str = ""

    def steps(self, total: int) -> list[int]:
        """The steps after which it happens, of a run of so many."""
        count = int(total / self.every + 1e-9) if self.every else 0
        found = [math.ceil(number * (self.every or 1) - 1e-9) for number in range(1, count + 1)]
        return [*found, total] if self.at_end and (not found or found[-1] != total) else found


def lanes(config: TrainConfig, length: Length, rate: Rate | None) -> Iterator[Lane]:
    """What happens during a run of this length; intervals in minutes are steps only where the rate is known."""
    yield Lane("Epochs", length.steps_per_epoch)
    has_samples = any(sample.enabled for sample in config.samples)
    for title, interval, is_wanted, at_end in (
        ("Validations", config.validate_every, True, False),
        ("Samples", config.sample_every, has_samples, True),
        ("Backups", config.backup_every, True, True),
        ("Models", config.save_every, True, True),
    ):
        if interval and is_wanted:
            yield _lane(title, interval, config, length, rate, at_end=at_end)
        elif at_end and is_wanted:
            yield Lane(title, None, at_end=True)


def _lane(
    title: str, interval: Interval, config: TrainConfig, length: Length, rate: Rate | None, *, at_end: bool
) -> Lane:
    match interval.unit:
        case "steps":
            return Lane(title, interval.count, at_end)
        case "epochs":
            return Lane(title, interval.count * length.steps_per_epoch, at_end)
        case _ if rate is None:
            return Lane(title, None, at_end, f"every {in_words(60 * interval.count)}")
        case _:
            each = effective_batch(config, length.world_size) / rate.samples_per_s
            return Lane(title, 60 * interval.count / each, at_end)


def duration_s(config: TrainConfig, length: Length, rate: Rate) -> float:
    """Seconds that the steps alone will take at this rate."""
    return length.steps * effective_batch(config, length.world_size) / rate.samples_per_s


def measured_rate(runs_dir: Path, config: TrainConfig, machine: str = "") -> Rate | None:
    """That of the newest run on this computer, or on the `machine` of this name, with the same model, size, batch and
    devices. Reads files: call it off the Tk thread."""
    wanted = _pace(dump(config))
    runs = newest_first(runs_dir, lambda run: run.events_file.stat().st_mtime if run.config_file.is_file() else None)
    for folder in runs[:_MOST_RUNS]:
        try:
            settings = read_json(folder.config_file)
        except (OSError, FileFault):
            continue
        if not isinstance(settings, dict) or _pace(settings) != wanted or _machine_of(folder) != machine:
            continue
        view = RunView()
        view.apply(head_and_tail(folder.events_file))
        if view.step is not None and view.step.samples_per_s:
            return Rate(view.step.samples_per_s, folder.name)
    return None


def _machine_of(folder: RunFolder) -> str:
    """That the run has trained on; "" for this computer."""
    copy = read_copy(folder)
    return "" if copy is None else copy.machine


def _pace(settings: dict[str, object]) -> list[object]:
    return [settings.get(name) for name in _PACE]


class TimelineCard:
    """The card `frame`; `refresh` after every change of the settings, `forget` when it comes into sight."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self.frame = card(parent)
        self._state = state
        self.rate: Rate | None = None
        self.lanes: list[Lane] = []
        self._asked: tuple[Path, str, list[object]] | None = None
        self.run_length = RunLength(self.frame, state, self.refresh)
        text(self.frame, "Timeline of the run", "heading").pack(
            anchor="w", padx=theme.px(16), pady=(theme.px(12), theme.px(4))
        )
        self.canvas = theme.paint(tk.Canvas(self.frame, height=1, width=10, highlightthickness=0), bg=theme.CARD)
        self.canvas.pack(fill="x", padx=theme.px(16))
        self.canvas.bind("<Configure>", lambda event: self._draw())
        theme.follow(self.canvas, "timeline", self._draw)
        self.line = text(self.frame, "", "small", colour=theme.MUTED)
        wrap_within(self.line, self.frame)
        self.line.pack(anchor="w", padx=theme.px(16), pady=(theme.px(2), theme.px(14)))

    def refresh(self) -> None:
        """Follow the settings; what has to be counted or read comes a moment later."""
        config = self._state.draft.config
        self.run_length.refresh()
        length = self.run_length.length
        if config is None or not length.steps:
            self.lanes = []
            is_counting = config is not None and self.run_length.is_counting
            self.line.configure(text="Counting the images…" if is_counting else _UNKNOWN)
        else:
            self._measure(config)
            self.lanes = list(lanes(config, length, self.rate))
            self.line.configure(text=describe(config, length, self.rate))
        self._draw()

    def forget(self) -> None:
        """Measure again at the next `refresh`: a run may have trained meanwhile."""
        self._asked = None

    def _measure(self, config: TrainConfig) -> None:
        machine = self._state.place.machine
        where = "" if machine is None else machine.name
        asked = self._state.runs_dir, where, _pace(dump(config))
        if asked == self._asked:
            return
        self._asked = asked

        def measured(rate: Rate | None) -> None:
            if asked == self._asked and rate != self.rate:
                self.rate = rate
                self.refresh()

        self._state.background.run(lambda: measured_rate(asked[0], config, where), measured)

    def _draw(self) -> None:
        canvas, total, lane = self.canvas, self.run_length.length.steps, theme.px(_LANE)
        canvas.delete("all")
        height = len(self.lanes) * lane + theme.px(_AXIS) if self.lanes else 1
        if int(canvas.cget("height")) != height:
            canvas.configure(height=height)
        left, right = theme.px(_TITLES), canvas.winfo_width() - theme.px(_COUNTS)
        if not self.lanes or right - left < theme.px(60):
            return
        for number, each in enumerate(self.lanes):
            self._draw_lane(each, number * lane + lane // 2, left, right, total)
        font, ink, below = theme.tk_font("small"), theme.resolve(theme.MUTED), len(self.lanes) * lane
        canvas.create_line(left, below, right, below, fill=theme.resolve(theme.LINE))
        middle = below + theme.px(_AXIS) // 2
        canvas.create_text(left, middle, text="step 1", anchor="w", font=font, fill=ink)
        canvas.create_text(right, middle, text=f"step {total:,}", anchor="e", font=font, fill=ink)

    def _draw_lane(self, lane: Lane, middle: int, left: int, right: int, total: int) -> None:
        canvas, steps, half = self.canvas, lane.steps(total), theme.px(_TICK) // 2
        font, ink, tick = theme.tk_font("small"), theme.resolve(theme.MUTED), max(1, theme.px(2))
        colour = theme.resolve(theme.ACCENT)
        canvas.create_text(0, middle, text=lane.title, anchor="w", font=font, fill=theme.resolve(theme.TEXT))
        canvas.create_line(left, middle, right, middle, fill=theme.resolve(theme.LINE))
        if len(steps) * theme.px(_CLOSEST) > right - left:
            canvas.create_rectangle(left, middle - half, right, middle + half, fill=colour, width=0)
        else:
            for step in steps:
                x = left + round((right - left) * step / total)
                canvas.create_rectangle(x - tick, middle - half, x, middle + half, fill=colour, width=0)
        said = lane.said or f"{len(steps):,}"
        canvas.create_text(right + theme.px(12), middle, text=said, anchor="w", font=font, fill=ink)


def describe(config: TrainConfig, length: Length, rate: Rate | None) -> str:
    """The length of the run in steps and in time, and where that time is from."""
    epochs = length.steps / length.steps_per_epoch if length.steps_per_epoch else 0
    one = f"{length.steps:,} steps, {length.steps_per_epoch:,} an epoch: {epochs:.3g} epoch{'s' * (epochs != 1)}."
    if rate is None:
        took = "How long it takes is known once a run with this model, size, batch and device has trained."
    else:
        took = (
            f"About {in_words(duration_s(config, length, rate))} at {rate.samples_per_s:.3g} samples/s, as measured in "
            f"{printable(rate.run)}; samples, validations and saving come on top."
        )
        if config.max_minutes and 60 * config.max_minutes < duration_s(config, length, rate):
            took += f" The limit of {in_words(60 * config.max_minutes)} ends it before."
    return f"{one} {took}"
