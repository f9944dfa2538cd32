"""Rows that are clicked anywhere."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme
from app.widgets.buttons import Button


def make_clickable(row: tk.Frame, action: Callable[[], object]) -> None:
    """A click anywhere in the row is one on its button; the row under the pointer is highlighted."""
    parts: list[tk.Misc] = [row]
    for part in parts:
        parts += [child for child in part.winfo_children() if not isinstance(child, Button)]

    def highlight() -> None:
        x, y = row.winfo_pointerxy()
        is_over = 0 <= x - row.winfo_rootx() < row.winfo_width() and 0 <= y - row.winfo_rooty() < row.winfo_height()
        colour = theme.WINDOW if is_over else theme.CARD  # on which buttons stand out
        for part in parts:
            theme.paint(part, bg=colour)
        for child in row.winfo_children():
            if isinstance(child, Button):
                child.configure(bg_color=colour)

    for part in parts:
        tk.Misc.configure(part, {"cursor": "hand2"})
        part.bind("<Button-1>", lambda event: action())
    for sequence in ("<Enter>", "<Leave>"):
        row.bind(sequence, lambda event: highlight())
