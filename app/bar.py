"""The scroll bar of everything that scrolls; some are out of sight while there is nothing to scroll."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

import customtkinter as ctk

from app import look


class Bar(ctk.CTkScrollbar):
    """Stands at the right of a list or an area; `on` is the colour of what lies behind it."""

    def __init__(self, parent: tk.Misc, command: Callable[..., object], on: look.Colour = look.CARD) -> None:
        super().__init__(
            parent,
            command=command,
            width=12,
            bg_color=on,
            fg_color=on,
            button_color=look.PRESSED,
            button_hover_color=look.FIELD_LINE,
            border_spacing=3,
        )
        self._on = on
        self._is_needed = True

    def show(self, first: float | str, last: float | str) -> None:
        """From where to where the list is in sight, as Tk tells it, too."""
        self.set(float(first), float(last))
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed != self._is_needed:
            self._is_needed = is_needed
            self.configure(button_color=look.PRESSED if is_needed else self._on)
