"""A scroll bar that is out of sight while there is nothing to scroll."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

import customtkinter as ctk

from app import look


class Bar(ctk.CTkScrollbar):
    """Stands at the right of a list that is drawn by hand."""

    def __init__(self, parent: tk.Misc, command: Callable[..., object]) -> None:
        super().__init__(
            parent,
            command=command,
            width=12,
            bg_color=look.CARD,
            fg_color=look.CARD,
            button_color=look.PRESSED,
            button_hover_color=look.FIELD_LINE,
            border_spacing=3,
        )
        self._is_needed = True

    def show(self, first: float, last: float) -> None:
        """From where to where the list is in sight."""
        self.set(first, last)
        is_needed = first > 0 or last < 1
        if is_needed != self._is_needed:
            self._is_needed = is_needed
            self.configure(button_color=look.PRESSED if is_needed else look.CARD)
