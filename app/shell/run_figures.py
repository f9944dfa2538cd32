"""The figures of the run bar: step, loss, and how long and fast it trains, or has trained."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from typing import Final

from app.runs.status import Status
from app.widgets import theme
from app.widgets.buttons import frame, text
from app.widgets.text_width import text_width
from modules.run.format_duration import format_duration
from modules.run.view.run_view import RunView

TITLES: Final[Mapping[str, str]] = {
    "step": "Step",
    "loss": "Loss",
    "left": "ETA",
    "speed": "Samples/s",
}
_TIME: Final = "Time"  # in place of the time that is left, once the run has ended
_MEAN: Final = "Mean rate"  # of samples, as well
_GAP: Final = 8  # between a figure and the next column, in unscaled pixels


class RunFigures(tk.Frame):
    """`arrange` in two columns or four, then `show`; redraws only what changed."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self.cells: dict[str, tk.Frame] = {}
        self.labels: dict[str, tk.Label] = {}
        self._titles: dict[str, tk.Label] = {}
        self._mean: tuple[object, float | None] = (None, None)  # of the samples/s, and of which values
        for name, title in TITLES.items():
            cell = self.cells[name] = frame(self)
            self._titles[name] = text(cell, title, "small", colour=theme.MUTED)
            self._titles[name].pack(side="left", padx=(0, theme.px(5)))
            self.labels[name] = text(cell, "-", "small")
            self.labels[name].pack(side="left")

    def arrange(self, columns: int) -> None:
        """Place them in this many columns."""
        for place, name in enumerate(TITLES):
            self.cells[name].grid(row=place // columns, column=place % columns, sticky="w")
            used = place < columns
            weight = 3 if name == "step" and columns == 4 else 2
            self.grid_columnconfigure(place, weight=weight if used else 0, uniform="metrics" if used else "")

    def show(self, view: RunView | None, status: Status, *, with_total: bool, is_old: bool = False) -> None:
        """Show those of a run, nothing without one and of one that ended before its first step.

        `with_total`: also how many steps there are, where there is room and that is known.
        `is_old`: the run has been started again, and the view knows nothing of that yet.
        """
        if view is None:
            self._show_nothing()
            return
        with view.lock:
            step, position, run_info, finished = view.step, view.position, view.run_info, view.finished
            if is_old:
                step, position, finished = None, view.backup_step, None
            took = view.duration_s
            loss = None if step is None else step.loss
            if loss is None and not status.is_alive:
                loss = view.last_loss  # of the earlier start, where the last one had nothing left to train
        if position is None and not status.is_alive:
            self._show_nothing()  # it ended before its first step
            return
        total = run_info.total_steps if run_info is not None and with_total else None
        self._set("step", "" if position is None else self._step_text(position, total))
        self._set("loss", "" if loss is None else f"{loss:.4g}")
        if finished is not None and position is not None and not status.is_alive:
            self._set("left", format_duration(took), _TIME)
            mean = _number(self._mean_rate(view))
            self._set("speed", f"{mean}/s" if mean else "", _MEAN)
        else:
            left = None if step is None or status.kind != "training" else step.eta_s
            self._set("left", "" if left is None else format_duration(left))
            self._set("speed", _number(None if step is None or not status.is_alive else step.samples_per_s))

    def _show_nothing(self) -> None:
        for label in (*self._titles.values(), *self.labels.values()):
            _set_text(label, "")

    def _step_text(self, step: int, total: int | None) -> str:
        """Without the total where both would reach into the next column."""
        both = f"{step:,}" if total is None else f"{step:,} of {total:,}"
        last = self.cells["loss"]
        font, room = theme.tk_font("small"), last.winfo_x() - self.labels["step"].winfo_x() - theme.px(_GAP)
        is_wide = not last.winfo_x() or text_width(self, both, font) <= room
        return both if is_wide else f"{step:,}"

    def _mean_rate(self, view: RunView) -> float | None:
        """Samples/s in the mean of the steps."""
        with view.lock:
            series = view.metrics["samples_per_s"]
            key = (id(series), series.count)
            if key != self._mean[0]:
                means = series.curve().means
                self._mean = key, sum(means) / len(means) if means else None
        return self._mean[1]

    def _set(self, name: str, value: str, title: str = "") -> None:
        _set_text(self._titles[name], title or TITLES[name])
        _set_text(self.labels[name], value or "-")


def _number(rate: float | None) -> str:
    return f"{rate:.3g}" if rate else ""


def _set_text(label: tk.Label, shown: str) -> None:
    if label.cget("text") != shown:
        label.configure(text=shown)
