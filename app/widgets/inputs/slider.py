"""A slider."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Final

from app.widgets import rounded_images, theme
from app.widgets.bar import Bar
from app.widgets.inputs.focus import handler, make_focusable

_TROUGH: Final = 4  # unscaled pixels, as are those of the knob, without and with the focus
_KNOB: Final = 14
_RINGED_KNOB: Final = 18


class Slider(tk.Canvas):
    """A number in a range; the arrows move it by a step, Page Up and Down by ten, Home and End to the ends."""

    def __init__(
        self,
        parent: tk.Misc,
        low: float,
        high: float,
        steps: int,
        moved: Callable[[float], object],
        *,
        bg: theme.Colour = theme.CARD,
        width: int = 120,
    ) -> None:
        super().__init__(
            parent,
            width=theme.px(width),
            height=theme.px(22),
            borderwidth=0,
            highlightthickness=0,
            takefocus=1,
            cursor="hand2",
        )
        self._on = bg
        self._low, self._high, self._steps = low, high, steps
        self._moved = moved
        self._value = low
        self._enabled = True
        self._focused = False
        self._trough, self._filled = Bar(self, theme.px(_TROUGH)), Bar(self, theme.px(_TROUGH))
        self._knob = self.create_image(0, 0)
        self.bind("<Configure>", lambda event: self.draw())
        self.bind("<Button-1>", lambda event: self._dragged(event.x))
        self.bind("<B1-Motion>", lambda event: self._dragged(event.x))
        for key, by in {
            "<Left>": -1,
            "<Down>": -1,
            "<Right>": 1,
            "<Up>": 1,
            "<Prior>": 10,
            "<Next>": -10,
            "<Home>": -steps,
            "<End>": steps,
        }.items():
            self.bind(key, handler(partial(self._step, by)))
        make_focusable(self, self._ring)
        theme.follow(self, "slider", self.draw)

    def get(self) -> float:
        """The value."""
        return self._value

    def show(self, value: float) -> None:
        """Show a value without calling `moved`."""
        value = min(max(value, self._low), self._high)
        if value != self._value:
            self._value = value
            self.draw()

    def set(self, value: float) -> None:
        """Set the value as the user does."""
        self.show(value)
        self._moved(self._value)

    def enable(self, enabled: bool) -> None:
        """Enable or disable it."""
        self._enabled = enabled
        self.configure(takefocus=enabled, cursor="hand2" if enabled else "")
        self.draw()

    def draw(self) -> None:
        """Redraw it."""
        left, right, y = self._span()
        x = left + (right - left) * (self._value - self._low) / (self._high - self._low)
        colour = theme.resolve(theme.ACCENT if self._enabled else theme.FAINT)
        half = theme.px(_TROUGH) // 2
        self._trough.place(left - half, right + half, y - half)
        self._filled.place(left - half, round(x), y - half)  # its end is below the knob
        self._trough.colour(theme.resolve(theme.TROUGH if self._enabled else theme.LINE))
        self._filled.colour(colour)
        bg = theme.resolve(self._on)
        ring = theme.resolve(theme.TEXT) if self._focused else ""
        self._image = rounded_images.disc(
            self, theme.px(_RINGED_KNOB if self._focused else _KNOB), fill=colour, ring=ring
        )
        self.coords(self._knob, x, y)
        self.itemconfigure(self._knob, image=self._image)
        tk.Misc.configure(self, {"bg": bg})

    def _span(self) -> tuple[int, int, int]:
        width = max(self.winfo_width(), int(self.cget("width")))
        height = max(self.winfo_height(), int(self.cget("height")))
        return theme.px(10), width - theme.px(10), height // 2

    def _dragged(self, x: int) -> None:
        left, right, _ = self._span()
        fraction = min(max((x - left) / max(right - left, 1), 0), 1)
        self._go(self._low + (self._high - self._low) * round(fraction * self._steps) / self._steps)

    def _step(self, by: int) -> None:
        self._go(self._value + by * (self._high - self._low) / self._steps)

    def _go(self, value: float) -> None:
        previous = self._value
        if self._enabled:
            self.show(value)
            if self._value != previous:
                self._moved(self._value)

    def _ring(self, focused: bool) -> None:
        self._focused = focused
        self.draw()
