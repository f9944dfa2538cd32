"""A message of a page: as much as fits, and the rest in a tooltip."""

from __future__ import annotations

import tkinter as tk

from app.widgets import theme
from app.widgets.buttons import add_tooltip
from app.widgets.ellipsis import fit_lines


class MessageLine(tk.Label):
    """`said` is the message as a whole; its first line is shown, in so many `lines` as most.

    With `keeps_height` it always has the height of so many, and what is above does not move.
    """

    def __init__(
        self, parent: tk.Misc, lines: int = 1, bg: theme.Colour = theme.WINDOW, *, keeps_height: bool = False
    ) -> None:
        super().__init__(parent, font=theme.tk_font("small"), anchor="w", justify="left", padx=0, pady=0, borderwidth=0)
        if keeps_height:
            self.configure(height=lines, anchor="nw")
        theme.paint(self, bg=bg, fg=theme.MUTED)
        self.said = ""
        self._lines = lines
        self._colour = theme.MUTED
        self.bind("<Configure>", lambda event: self._fit())
        add_tooltip(self, lambda: self.said)

    def say(self, message: str, colour: theme.Colour = theme.MUTED) -> None:
        """Show a message."""
        if colour != self._colour:
            self._colour = colour
            theme.paint(self, fg=colour)
        if message != self.said:
            self.said = message
            self._fit()

    def _fit(self) -> None:
        room, line = self.winfo_width(), self.said.split("\n")[0]
        shown = fit_lines(self, line, theme.tk_font("small"), room, self._lines) if room > 1 else line
        if self.cget("text") != shown:
            self.configure(text=shown)
