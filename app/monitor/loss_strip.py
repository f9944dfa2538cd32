"""A small curve of the training loss beside the samples, with a mark at the step that they show."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from typing import Final

import numpy as np

from app.monitor.points import points_of, smoothed
from app.widgets import theme
from modules.run.view.run_view import RunView

_HEIGHT: Final = 30  # unscaled pixels
_NARROWEST: Final = 60
_EDGE: Final = 4
_READ_S: Final = 2.0
_SMOOTHING: Final = 0.05  # of the curve


class LossStrip(tk.Canvas):
    """`refresh` reads the loss, `mark` says which step is shown; a click calls `choose` with the step clicked on."""

    def __init__(self, parent: tk.Misc, choose: Callable[[float], object]) -> None:
        super().__init__(parent, height=theme.px(_HEIGHT), width=10, borderwidth=0, highlightthickness=0)
        self.configure(cursor="hand2")
        self._choose = choose
        self._step: int | None = None
        self.bind("<Configure>", lambda event: self._draw())
        self.bind("<Button-1>", lambda event: self._click(event.x))
        self.clear()
        theme.paint(self, bg=theme.WINDOW)
        theme.follow(self, "loss", self._draw)

    def clear(self) -> None:
        """Forget the curve: another run is followed."""
        self.steps, self.losses = np.empty(0), np.empty(0)
        self._count, self._read_at = 0, 0.0
        self._draw()

    def refresh(self, view: RunView) -> bool:
        """Read the loss again if some time has passed; return whether it has changed."""
        if time.monotonic() < self._read_at + _READ_S:
            return False
        with view.lock:
            series = view.metrics["loss"]
            if series.count == self._count:
                return False
            self._count, curve = series.count, series.curve()
        points = points_of(curve, "steps", 0.0)
        self.steps, self.losses = smoothed(points, max(1.0, _SMOOTHING * (points.x[-1] - points.x[0])))
        self._read_at = time.monotonic()
        self._draw()
        return True

    def mark(self, step: int | None) -> None:
        """Show at which step the samples were drawn; None for no mark."""
        if step != self._step:
            self._step = step
            self._draw()

    def loss_at(self, step: int) -> float | None:
        """The smoothed loss at a step; None before there is any."""
        return float(np.interp(step, self.steps, self.losses)) if len(self.steps) else None

    def _click(self, x: int) -> None:
        if len(self.steps) > 1:
            share = (x - theme.px(_EDGE)) / max(1, self.winfo_width() - 2 * theme.px(_EDGE))
            self._choose(float(self.steps[0] + share * (self.steps[-1] - self.steps[0])))

    def _draw(self) -> None:
        self.delete("all")
        width, height, edge = self.winfo_width(), self.winfo_height(), theme.px(_EDGE)
        if len(self.steps) < 2 or width < theme.px(_NARROWEST):
            return
        first, least = self.steps[0], self.losses.min()
        across = (width - 2 * edge) / (self.steps[-1] - first)
        high = (height - 2 * edge) / ((self.losses.max() - least) or 1.0)
        x, y = edge + (self.steps - first) * across, height - edge - (self.losses - least) * high
        line = np.column_stack((x, y)).ravel().tolist()
        self.create_line(line, fill=theme.resolve(theme.ACCENT_TEXT), width=theme.px(2), joinstyle="round")
        loss = None if self._step is None else self.loss_at(self._step)
        if self._step is not None and loss is not None:
            at = edge + (min(max(self._step, first), self.steps[-1]) - first) * across
            level, radius = height - edge - (loss - least) * high, theme.px(4)
            self.create_line(at, 0, at, height, fill=theme.resolve(theme.MUTED))
            box = (at - radius, level - radius, at + radius, level + radius)
            self.create_oval(*box, fill=theme.resolve(theme.ACCENT_TEXT), outline=theme.resolve(theme.WINDOW))
