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
            button_hover_color=theme.EDGE,
            border_spacing=3,
        )
        self._on = bg
        self._is_needed = True
        # customtkinter lays out the whole window at each drawing of a scrollbar, several times while a section is built
        self._canvas.update_idletasks = lambda: None

    def set(self, start_value: float, end_value: float) -> None:
        """Override: draw only what has changed."""
        if (start_value, end_value) != (self._start_value, self._end_value):
            super().set(start_value, end_value)

    def show(self, first: float | str, last: float | str) -> None:
        """Show the visible range as fractions from 0 to 1, as Tk passes them; hide the thumb if all is visible."""
        self.set(float(first), float(last))
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed != self._is_needed:
            self._is_needed = is_needed
            self.configure(button_color=theme.PRESSED if is_needed else self._on)
