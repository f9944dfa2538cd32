"""The names and colours of a plot's lines, in a strip of their own, so that they cover nothing."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from app.widgets import theme
from app.widgets.ellipsis import truncate
from modules.files import printable

_ROW: Final = 17  # unscaled pixels
_MOST: Final = 26  # characters of a name
_LEAST: Final = 5


class Legend(tk.Canvas):
    """As many rows as the names need; without height if there are fewer than two."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent, width=10, height=1, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._entries: tuple[tuple[str, theme.Colour], ...] = ()
        self.bind("<Configure>", lambda event: self._draw())
        theme.follow(self, "entries", self._draw)

    def show(self, entries: Sequence[tuple[str, theme.Colour]]) -> None:
        """Show names with the colours of their lines."""
        shown = tuple(entries) if len(entries) > 1 else ()
        if shown != self._entries:
            self._entries = shown
            self._draw()

    def _draw(self) -> None:
        self.delete("all")
        x, y, row = 0, theme.px(_ROW) // 2, theme.px(_ROW)
        short = distinct_names([name for name, _ in self._entries])
        for name, (_, colour) in zip(short, self._entries, strict=True):
            label = self.create_text(
                0, y, anchor="w", text=name, fill=theme.resolve(theme.MUTED), font=theme.tk_font("small")
            )
            width = theme.px(18) + self.bbox(label)[2]
            if x and x + width > self.winfo_width():
                x, y = 0, y + row
            self.create_line(x, y, x + theme.px(12), y, width=theme.px(3), fill=theme.resolve(colour))
            self.coords(label, x + theme.px(18), y)
            x += width + theme.px(16)
        height = y + row // 2 + theme.px(2) if self._entries else 1
        if height != int(self.cget("height")):
            self.configure(height=height)


def names_that_fit(names: Sequence[str], fits: Callable[[str], bool]) -> list[str]:
    """Names as long as there is room for all of them, shortened as by `distinct_names`."""
    tried = (distinct_names(names, most) for most in range(_MOST, _LEAST, -1))
    return next((short for short in tried if all(map(fits, short))), distinct_names(names, _LEAST))


def distinct_names(names: Sequence[str], most: int = _MOST) -> list[str]:
    """Names of at most `most` characters; of long ones the end, or if that is the same, what follows their common
    start."""
    names = [printable(name, mask=False) for name in names]
    long = [name for name in names if len(name) > most]
    short = {name: f"…{name[1 - most :]}" for name in long}
    if len(set(short.values())) < len(set(long)):
        common = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*long, strict=False)))
        start = min((common, *(len(name) - most // 2 for name in long)))
        short = {name: f"…{name[start:]}" if start else name for name in long}
    return [truncate(short.get(name, name), most) for name in names]
