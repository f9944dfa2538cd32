"""A thin bar that fills; a moving piece where nobody can say how far it is."""

from __future__ import annotations

import time
import tkinter as tk
from typing import Final

from app import look

HEIGHT: Final = 6
_MOVE_MS: Final = 50
_ROUND_S: Final = 1.8
_PIECE: Final = 0.22


class ProgressLine(tk.Canvas):
    """`show` as often as one likes: only what changed is drawn."""

    def __init__(self, parent: tk.Misc, on: look.Colour = look.CARD) -> None:
        super().__init__(parent, height=look.px(HEIGHT), borderwidth=0, highlightthickness=0)
        look.paint(self, bg=on)
        thick = look.px(HEIGHT)
        self._trough = self.create_line(0, 0, 0, 0, width=thick, capstyle="round")
        self._bar = self.create_line(0, 0, 0, 0, width=thick, capstyle="round", state="hidden")
        self._fraction: float | None = 0.0
        self._colour = look.ACCENT
        self._moving = ""
        look.follow(self, "colours", self._recolour)
        self.bind("<Configure>", lambda event: self._draw())

    def show(self, fraction: float | None, *, busy: bool, colour: look.Colour = look.ACCENT) -> None:
        """Fill it so far; None and `busy` lets a piece move along."""
        if colour != self._colour:
            self._colour = colour
            self._recolour()
        if fraction != self._fraction:
            self._fraction = fraction
            self._draw()
        if fraction is None and busy and not self._moving:
            self._move()
        elif (fraction is not None or not busy) and self._moving:
            self.after_cancel(self._moving)
            self._moving = ""
            self._draw()

    def destroy(self) -> None:
        """Move no longer."""
        if self._moving:
            self.after_cancel(self._moving)
        super().destroy()

    def _recolour(self) -> None:
        self.itemconfigure(self._trough, fill=look.now(look.TROUGH))
        self.itemconfigure(self._bar, fill=look.now(self._colour))

    def _draw(self) -> None:
        self._place(self._trough, 0.0, 1.0)
        if self._fraction is not None:
            self._place(self._bar, 0.0, self._fraction)
        self.itemconfigure(self._bar, state="normal" if self._fraction else "hidden")

    def _move(self) -> None:
        begin = time.monotonic() % _ROUND_S / _ROUND_S * (1 + _PIECE) - _PIECE
        self.itemconfigure(self._bar, state="normal")
        self._place(self._bar, max(0.0, begin), min(1.0, begin + _PIECE))
        self._moving = self.after(_MOVE_MS, self._move)

    def _place(self, item: int, begin: float, end: float) -> None:
        middle, room = look.px(HEIGHT) / 2, self.winfo_width() - look.px(HEIGHT)
        self.coords(item, middle + begin * room, middle, middle + max(begin, end) * room, middle)
