"""A thin progress bar; a moving segment while the progress is unknown, nothing before anything has started."""

from __future__ import annotations

import time
import tkinter as tk
from typing import Final

from app.widgets import theme
from app.widgets.bar import Bar

HEIGHT: Final = 6
_MOVE_MS: Final = 50
_CYCLE_S: Final = 1.8
_SEGMENT: Final = 0.22


class ProgressBar(tk.Canvas):
    """`show` redraws only what changed."""

    def __init__(self, parent: tk.Misc, bg: theme.Colour = theme.CARD) -> None:
        super().__init__(parent, height=theme.px(HEIGHT), borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=bg)
        self._trough, self._bar = Bar(self, theme.px(HEIGHT)), Bar(self, theme.px(HEIGHT))
        self._fraction: float | None = 0.0
        self._is_busy = False
        self._colour = theme.ACCENT
        self._moving = ""
        theme.follow(self, "colours", self._recolour)
        self.bind("<Configure>", lambda event: self._draw())

    def show(self, fraction: float | None, *, busy: bool, colour: theme.Colour = theme.ACCENT) -> None:
        """Show a fraction from 0 to 1; None while `busy` shows a moving segment. Idle at 0 it is not seen."""
        if colour != self._colour:
            self._colour = colour
            self._recolour()
        if (fraction, busy) != (self._fraction, self._is_busy):
            self._fraction, self._is_busy = fraction, busy
            self._draw()
        if fraction is None and busy and not self._moving:
            self._move()
        elif (fraction is not None or not busy) and self._moving:
            self.after_cancel(self._moving)
            self._moving = ""
            self._draw()

    def destroy(self) -> None:
        """Stop the animation."""
        if self._moving:
            self.after_cancel(self._moving)
        super().destroy()

    def _recolour(self) -> None:
        self._trough.colour(theme.resolve(theme.TROUGH))
        self._bar.colour(theme.resolve(self._colour))

    def _draw(self) -> None:
        if not (self._fraction or self._is_busy):
            self._trough.hide()
            self._bar.hide()
            return
        self._place(self._trough, 0.0, 1.0)
        if self._fraction:
            self._place(self._bar, 0.0, self._fraction)
        else:
            self._bar.hide()

    def _move(self) -> None:
        start = time.monotonic() % _CYCLE_S / _CYCLE_S * (1 + _SEGMENT) - _SEGMENT
        self._place(self._bar, max(0.0, start), min(1.0, start + _SEGMENT))
        self._moving = self.after(_MOVE_MS, self._move)

    def _place(self, bar: Bar, start: float, end: float) -> None:
        thick = theme.px(HEIGHT)
        room = self.winfo_width() - thick
        bar.place(round(start * room), round(max(start, end) * room) + thick, 0)
