"""A number in a natural range."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial

from app import look, shapes
from app.inputs.focus import take_focus, then


class Slider(tk.Canvas):
    """A number in a natural range; the arrows move it by a step, Page Up and Down by ten, Home and End to the ends."""

    def __init__(
        self,
        parent: tk.Misc,
        low: float,
        high: float,
        steps: int,
        moved: Callable[[float], object],
        *,
        on: look.Colour = look.CARD,
        width: int = 120,
    ) -> None:
        super().__init__(
            parent,
            width=look.px(width),
            height=look.px(22),
            borderwidth=0,
            highlightthickness=0,
            takefocus=1,
            cursor="hand2",
        )
        self._on = on
        self._low, self._high, self._steps = low, high, steps
        self._moved = moved
        self._value = low
        self._enabled = True
        self._focused = False
        self._trough = self.create_line(0, 0, 0, 0, width=look.px(4), capstyle="round")
        self._filled = self.create_line(0, 0, 0, 0, width=look.px(4), capstyle="round")
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
            self.bind(key, then(partial(self._step, by)))
        take_focus(self, self._ring)
        look.follow(self, "slider", self.draw)

    def get(self) -> float:
        """The value."""
        return self._value

    def show(self, value: float) -> None:
        """Show a value without telling anybody."""
        value = min(max(value, self._low), self._high)
        if value != self._value:
            self._value = value
            self.draw()

    def set(self, value: float) -> None:
        """Move it as people do."""
        self.show(value)
        self._moved(self._value)

    def enable(self, enabled: bool) -> None:
        """Greyed and out of the focus order, or not."""
        self._enabled = enabled
        self.configure(takefocus=enabled, cursor="hand2" if enabled else "")
        self.draw()

    def draw(self) -> None:
        """Draw it as it stands."""
        left, right, y = self._span()
        x = left + (right - left) * (self._value - self._low) / (self._high - self._low)
        colour = look.now(look.ACCENT if self._enabled else look.FAINT)
        self.coords(self._trough, left, y, right, y)
        self.coords(self._filled, left, y, x, y)
        self.itemconfigure(self._trough, fill=look.now(look.TROUGH if self._enabled else look.LINE))
        self.itemconfigure(self._filled, fill=colour, state="normal" if x > left else "hidden")
        on = look.now(self._on)
        ring = look.now(look.ACCENT_TEXT) if self._focused else on
        self._picture = shapes.disc(self, look.px(18), fill=colour, on=on, ring=ring)
        self.coords(self._knob, x, y)
        self.itemconfigure(self._knob, image=self._picture)
        tk.Misc.configure(self, {"bg": on})

    def _span(self) -> tuple[int, int, int]:
        width = max(self.winfo_width(), int(self.cget("width")))
        height = max(self.winfo_height(), int(self.cget("height")))
        return look.px(10), width - look.px(10), height // 2

    def _dragged(self, x: int) -> None:
        left, right, _ = self._span()
        share = min(max((x - left) / max(right - left, 1), 0), 1)
        self._go(self._low + (self._high - self._low) * round(share * self._steps) / self._steps)

    def _step(self, by: int) -> None:
        self._go(self._value + by * (self._high - self._low) / self._steps)

    def _go(self, value: float) -> None:
        former = self._value
        if self._enabled:
            self.show(value)
            if self._value != former:
                self._moved(self._value)

    def _ring(self, focused: bool) -> None:
        self._focused = focused
        self.draw()
