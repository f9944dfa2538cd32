"""Covers a window that opens until what is in it is laid out: else its cards are seen empty first."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.widgets import theme
from app.widgets.later import later

_ROUNDS: Final = 4  # a text that wraps to its card is laid out after the card, and that after its page
_ROUND_MS: Final = 5


class Curtain(tk.Frame):
    """Lies over all that is in the window, and goes by itself."""

    def __init__(self, window: tk.Misc, bg: theme.Colour) -> None:
        super().__init__(window, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=bg)
        self.place(x=0, y=0, relwidth=1, relheight=1)
        self.lift()
        self._rounds = _ROUNDS
        self._wait()

    def _wait(self) -> None:
        if self.winfo_viewable():
            self.update_idletasks()
            self._rounds -= 1
        if self._rounds:
            later(self, _ROUND_MS, self._wait)
        else:
            self.destroy()
