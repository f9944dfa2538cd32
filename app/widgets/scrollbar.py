"""The themed scrollbar: a rounded thumb on a canvas."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable
from typing import Final

from app.widgets import rounded_images, theme
from app.widgets.padding import UnscaledPadding

WIDTH: Final = 12
_SPACE: Final = 3  # around the thumb
_SHORTEST: Final = 20


class Scrollbar(UnscaledPadding, tk.Canvas):
    """The scrollbar at the right of a list or an area; `bg` is the colour behind it.

    `command` gets what Tk's scrollbars pass: ("moveto", fraction) or ("scroll", steps, "units").
    """

    def __init__(self, parent: tk.Misc, command: Callable[..., object], bg: theme.Colour = theme.CARD) -> None:
        super().__init__(parent, width=theme.px(WIDTH), height=0, borderwidth=0, highlightthickness=0)
        self._command, self._behind = command, bg
        self._first, self._last = 0.0, 1.0
        self._hides_full = self._is_under_pointer = False
        self._grip = 0.0  # from the top of the thumb to the pointer, in pixels
        self._ends = self.create_image(0, 0, anchor="n"), self.create_image(0, 0, anchor="s")
        self._body = self.create_rectangle(0, 0, 0, 0, width=0)  # over the inner halves of the ends
        self.bind("<Configure>", lambda event: self._draw())
        self.bind("<Enter>", lambda event: self._point(True))
        self.bind("<Leave>", lambda event: self._point(False))
        self.bind("<Button-1>", self._press)
        self.bind("<B1-Motion>", self._drag)
        for sequence in ("<Button-4>", "<Button-5>") if sys.platform.startswith("linux") else ("<MouseWheel>",):
            self.bind(sequence, self._turn)
        theme.follow(self, "scrollbar", self._colour)

    def set(self, first: float | str, last: float | str) -> None:
        """Show the visible range, as fractions from 0 to 1; Tk passes them as texts."""
        shown = float(first), float(last)
        if shown != (self._first, self._last):
            self._first, self._last = shown
            self._draw()

    def show(self, first: float | str, last: float | str) -> None:
        """As `set`, but the thumb is hidden while all is visible."""
        if not self._hides_full:
            self._hides_full = True
            self._draw()
        self.set(first, last)

    def _draw(self) -> None:
        state = "hidden" if self._hides_full and self._first <= 0 and self._last >= 1 else "normal"
        (top, bottom), middle, half = self._thumb(), self.winfo_width() / 2, self._thickness() / 2
        self.coords(self._body, middle - half, top + half, middle + half, bottom - half)
        self.coords(self._ends[0], middle, top)
        self.coords(self._ends[1], middle, bottom)
        for item in (self._body, *self._ends):
            self.itemconfigure(item, state=state)

    def _colour(self) -> None:
        fill = theme.resolve(theme.FIELD_LINE if self._is_under_pointer else theme.EDGE)
        behind = theme.resolve(self._behind)
        tk.Misc.configure(self, {"bg": behind})
        self._disc = rounded_images.disc(self, self._thickness(), fill=fill)
        self.itemconfigure(self._body, fill=fill)
        for end in self._ends:
            self.itemconfigure(end, image=self._disc)

    def _thumb(self) -> tuple[float, float]:
        """Its upper and lower edge, in pixels."""
        top, room = self._trough()
        length = min(max((self._last - self._first) * room, theme.px(_SHORTEST)), room)
        hidden = 1 - (self._last - self._first)
        start = top + (room - length) * (self._first / hidden if hidden > 0 else 0)
        return start, start + length

    def _trough(self) -> tuple[int, int]:
        """Its upper edge and its height, in pixels."""
        space = theme.px(_SPACE)
        return space, max(self.winfo_height() - 2 * space, 1)

    def _thickness(self) -> int:
        return theme.px(WIDTH) - 2 * theme.px(_SPACE)

    def _press(self, event: tk.Event[tk.Misc]) -> None:
        """Take the thumb; a press beside it brings its middle here."""
        top, bottom = self._thumb()
        if top <= event.y < bottom:
            self._grip = event.y - top
        else:
            self._grip = (bottom - top) / 2
            self._drag(event)

    def _drag(self, event: tk.Event[tk.Misc]) -> None:
        (top, bottom), (start, room) = self._thumb(), self._trough()
        free = room - (bottom - top)
        if free > 0:
            place = min(max((event.y - self._grip - start) / free, 0.0), 1.0)
            shown = self._last - self._first
            first = place * (1 - shown)
            self.set(first, first + shown)
            self._command("moveto", first)

    def _turn(self, event: tk.Event[tk.Misc]) -> None:
        steps = {4: -1, 5: 1}.get(int(event.num)) if sys.platform.startswith("linux") else None
        if steps is None:
            steps = -event.delta if sys.platform == "darwin" else -event.delta // 40
        self._command("scroll", steps, "units")

    def _point(self, inside: bool) -> None:
        self._is_under_pointer = inside
        self._colour()
