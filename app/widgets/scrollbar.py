"""The themed scrollbar."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.toolkit import ctk
from app.widgets import theme


class Scrollbar(ctk.CTkScrollbar):
    """The scrollbar at the right of a list or an area; `bg` is the colour behind it."""

    def __init__(self, parent: tk.Misc, command: Callable[..., object], bg: theme.Colour = theme.CARD) -> None:
        super().__init__(
            parent,
            command=command,
            width=12,
            bg_color=bg,
            fg_color=bg,
            button_color=theme.PRESSED,
            button_hover_color=theme.FIELD_LINE,
            border_spacing=3,
        )
        self._on = bg
        self._is_needed = True

    def show(self, first: float | str, last: float | str) -> None:
        """Show the visible range as fractions from 0 to 1, as Tk passes them; hide the thumb if all is visible."""
        self.set(float(first), float(last))
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed != self._is_needed:
            self._is_needed = is_needed
            self.configure(button_color=theme.PRESSED if is_needed else self._on)
