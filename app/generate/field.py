"""A setting of the Generate page: a title above its control."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Final

from app.form.setting_text import help_text
from app.widgets import theme
from app.widgets.buttons import Entry, Menu, Switch, TextBox, add_tooltip, frame, text
from modules.config import Option

INSIDE: Final = 300  # unscaled pixels of texts in a card
_HALF: Final = 146  # of texts in one of two columns
_GAP: Final = 3


class Field:
    """A title above its control, and below it what is wrong; it takes no width from the field beside it.

    `column` is its place in a row of two, which share the width for `message` if it `spans` both.
    """

    def __init__(self, parent: tk.Misc, option: Option, column: int | None = None, *, spans: bool = False) -> None:
        self.outer = frame(parent)
        self.head = frame(self.outer)
        self.head.pack(fill="x")
        title = text(self.head, option.title, "small", colour=theme.MUTED)
        title.pack(side="left")
        add_tooltip(title, partial(help_text, option))
        self.area = frame(self.outer)
        self.area.pack(fill="x", pady=(theme.px(_GAP), 0))
        self.message = text(
            parent if spans else self.outer,
            "",
            "small",
            colour=theme.BAD,
            wrap=INSIDE if spans or column is None else _HALF,
        )
        self._show: Callable[[], object] = partial(self.message.pack, anchor="w", pady=(theme.px(_GAP), 0))
        self._hide: Callable[[], object] = self.message.pack_forget
        if spans:
            self._show = partial(
                self.message.grid,
                row=1 + (column or 0),
                columnspan=2,
                sticky="e" if column else "w",  # below its own control
                pady=(0, theme.px(_GAP)),
            )
            self._hide = self.message.grid_remove
        self.control: Entry | TextBox | Menu | Switch

    def say(self, sentence: str, colour: theme.Colour = theme.BAD) -> None:
        """Show a sentence below the control; none if it is empty."""
        theme.paint(self.message, fg=colour)
        self.message.configure(text=sentence)
        if sentence and not self.message.winfo_manager():
            self._show()
        elif not sentence:
            self._hide()
