"""Rows that are clicked anywhere."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator

from app.widgets import theme
from app.widgets.button import Button
from app.widgets.card import Card


class ClickableRow(Card):
    """A row on a card; call `on_click` once it is filled. Under the pointer it is highlighted, with round corners."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent, fg_color=theme.CARD, border_color=theme.CARD, bg_color=theme.CARD)

    def on_click(self, action: Callable[[], object]) -> None:
        """A click anywhere in the row does what its button does."""
        for part in (self, *self._inside(self)):
            tk.Misc.configure(part, {"cursor": "hand2"})
            if not isinstance(part, Button):
                part.bind("<Button-1>", lambda event: action())
        for sequence in ("<Enter>", "<Leave>"):
            self.bind(sequence, lambda event: self._highlight())

    def _highlight(self) -> None:
        x, y = self.winfo_pointerx() - self.winfo_rootx(), self.winfo_pointery() - self.winfo_rooty()
        is_over = 0 <= x < self.winfo_width() and 0 <= y < self.winfo_height()
        colour = theme.WINDOW if is_over else theme.CARD  # on which buttons stand out
        self.configure(fg_color=colour, border_color=colour)
        for part in self._inside(self):
            if isinstance(part, Button):
                part.configure(bg_color=colour)
            else:
                theme.paint(part, bg=colour)

    def _inside(self, widget: tk.Misc) -> Iterator[tk.Misc]:
        """All that is in it, without its corners and without what is in buttons."""
        for child in widget.winfo_children():
            if child in self._corners:
                continue
            yield child
            if not isinstance(child, Button):
                yield from self._inside(child)
