"""The learning rate over the steps of the run, below the settings of its schedule."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from pydantic import ValidationError

from app.curves.run_length import RunLength
from app.curves.sketch import Curve, Sketch
from app.form.setting_text import format_value, with_titles
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import text, wrap_within
from modules.config import TrainConfig, learning_rate_scale
from modules.config.schedules import learning_rate_factor, own_scheduler_note, warmup_steps

SETTINGS: Final = (
    *("learning_rate", "scheduler", "warmup_steps", "warmup_fraction", "min_learning_rate_factor"),
    *("scheduler_target", "scheduler_arguments", "scheduler_interval"),
    *("scheduler_cycles", "scheduler_power", "optimizer", "global_batch_size", "lr_scaling"),
    *("local_steps", "num_nodes"),
)
UNKNOWN_LENGTH: Final = 1000  # steps, while there are no images to count
_POINTS: Final = 240


class ScheduleCurve(tk.Frame):
    """Put it into the card of the schedule; `refresh` after every change."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._state = state
        self.run_length = RunLength(self, state, self._draw)
        self.sketch = Sketch(self)
        self.sketch.pack(fill="x")
        self.line = text(self, "", "small", colour=theme.MUTED)
        wrap_within(self.line, self, 0)
        self.line.pack(fill="x", pady=(theme.px(2), 0))

    def refresh(self) -> None:
        """Follow the settings; the number of steps may come a moment later."""
        self.run_length.refresh()
        self._draw()

    def _draw(self) -> None:
        data = self._state.draft.data
        try:
            config = TrainConfig.model_validate({name: data[name] for name in SETTINGS})
        except ValidationError:
            return  # the fields say so; the last valid curve stays
        length = self.run_length.length
        steps = length.steps or _number(data.get("max_steps")) or UNKNOWN_LENGTH
        is_known = bool(length.steps)
        highest = config.learning_rate * learning_rate_scale(config, length.world_size)
        count = min(_POINTS, max(steps, 2))
        at = [round(number * (steps - 1) / (count - 1)) for number in range(count)]
        factors = [learning_rate_factor(step, steps, config) for step in at]
        factors = [] if config.scheduler == "custom" else factors
        self.sketch.show(Curve(factors, "step 1", "", f"step {steps:,}", f"0 to {_short(highest)}"))
        said = describe(config, steps, highest, is_known or self.run_length.is_counting)
        if self.run_length.is_counting:
            said += " Counting the images…"
        self.line.configure(text=" ".join(filter(None, (said, with_titles(length.end)))))


def describe(config: TrainConfig, steps: int, highest: float, is_known: bool) -> str:
    """One sentence on the curve, and whether the number of steps is that of the run."""
    if config.scheduler == "custom":
        return f"{own_scheduler_note(config)} It is not drawn."
    warmup = warmup_steps(config, steps)
    cycles = f"{config.scheduler_cycles} times " if config.scheduler_cycles > 1 else ""
    shape = {
        "constant": "stays",
        "linear": "falls evenly",
        "cosine": "falls along a cosine",
        "cosine_with_restarts": f"falls {cycles}along a cosine",
        "polynomial": "falls along a polynomial",
        "rex": "falls slowly, and fast in the end,",
    }[config.scheduler]
    end = highest * learning_rate_factor(max(steps - 1, 0), steps, config)
    shape += "" if config.scheduler == "constant" else f" to {_short(end)} at the last step"
    rise = (
        f"Rises over {warmup:,} steps to {_short(highest)}, then {shape}."
        if warmup
        else f"Starts at {_short(highest)} and {shape}."
    )
    if warmup >= steps:
        rise = f"All {steps:,} steps are warm-up: the learning rate ends at {_short(end)} of {_short(highest)}."
    known = (
        ""
        if is_known
        else f" Drawn for {steps:,} steps: how many is known once there are images and all settings are valid."
    )
    return rise + known


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else 0


def _short(value: float) -> str:
    return format_value(float(f"{value:.3g}"))
