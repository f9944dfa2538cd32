"""A setting of the Generate page: a title above its control."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from typing import Final

from app.form.setting_text import help_text
from app.widgets import theme
from app.widgets.buttons import Entry, Menu, Switch, TextBox, add_tooltip, frame, text
from modules.config import Option

INSIDE: Final = 300  # unscaled pixels of texts in a card


class Field:
    """A title above its control, and below it what is wrong."""

    def __init__(self, parent: tk.Misc, option: Option) -> None:
        self.outer = frame(parent)
        self.head = frame(self.outer)
        self.head.pack(fill="x")
        title = text(self.head, option.title, "small", colour=theme.MUTED)
        title.pack(side="left")
        add_tooltip(title, partial(help_text, option))
        self.area = frame(self.outer)
        self.area.pack(fill="x", pady=(theme.px(3), 0))
        self.message = text(self.outer, "", "small", colour=theme.BAD, wrap=INSIDE)
        self.control: Entry | TextBox | Menu | Switch

    def say(self, sentence: str, colour: theme.Colour = theme.BAD) -> None:
        """Show a sentence below the control; none if it is empty."""
        theme.paint(self.message, fg=colour)
        self.message.configure(text=sentence)
        if sentence and not self.message.winfo_manager():
            self.message.pack(anchor="w", pady=(theme.px(3), 0))
        elif not sentence:
            self.message.pack_forget()
