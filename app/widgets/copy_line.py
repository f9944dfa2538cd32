"""A long line of text to copy: its title, a Copy button, and the line, which scrolls sideways."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.widgets.later import later

_COPIED_MS: Final = 1600


class CopyLine(tk.Frame):
    """Read-only; `show` may be called repeatedly."""

    def __init__(self, parent: tk.Misc, title: str, line: str = "") -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        head = frame(self)
        head.pack(fill="x", pady=(0, theme.px(6)))
        self.copy = Button(head, "Copy", self._copy, icon="copy", bg=theme.CARD)
        self.copy.pack(side="right")
        text(head, title, "strong").pack(side="left")
        self.entry = tk.Entry(
            self, font=theme.tk_font("mono"), relief="flat", borderwidth=0, highlightthickness=1, state="readonly"
        )
        theme.paint(
            self.entry,
            readonlybackground=theme.FIELD,
            fg=theme.TEXT,
            highlightbackground=theme.EDGE,
            highlightcolor=theme.ACCENT,
        )
        self.entry.pack(fill="x", ipady=theme.px(6))
        self.show(line)

    def show(self, line: str) -> None:
        """Replace the line."""
        if self.entry.get() != line:
            self.entry.configure(state="normal")
            self.entry.delete(0, tk.END)
            self.entry.insert(0, line)
            self.entry.configure(state="readonly")

    def _copy(self) -> None:
        self.clipboard_clear()
        self.clipboard_append(self.entry.get())
        self.copy.configure(text="Copied")
        later(self.copy, _COPIED_MS, lambda: self.copy.configure(text="Copy"))
