"""A command to copy: its title, what it is for, a Copy button, and every line of it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Final

from app.widgets import theme
from app.widgets.buttons import Button, frame, handler, text, wrap_within
from app.widgets.later import later
from modules.files import visible

_COPIED_MS: Final = 1600


class CopyText(tk.Frame):
    """Read-only and as high as its lines; `show` may be called repeatedly."""

    def __init__(
        self,
        parent: tk.Misc,
        title: str,
        content: str = "",
        about: str = "",
        options: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`options` are listed above the command, each with what it is for."""
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        head = frame(self)
        head.pack(fill="x", pady=(0, theme.px(6)))
        self.copy = Button(head, "Copy", self._copy, icon="copy", bg=theme.CARD)
        self.copy.pack(side="right")
        text(head, title, "strong").pack(side="left")
        if about:
            label = text(self, about, "small", colour=theme.MUTED)
            wrap_within(label, self, margin=0)
            label.pack(fill="x", pady=(0, theme.px(4)))
        if options:
            _table_of(self, options).pack(anchor="w", pady=(0, theme.px(6)))
        self.shown = tk.Text(
            self, height=1, width=1, wrap="char", font=theme.tk_font("mono"), state="disabled",
            relief="flat", borderwidth=0, padx=theme.px(10), pady=theme.px(6), highlightthickness=1,
        )  # fmt: skip
        theme.paint(
            self.shown, bg=theme.FIELD, fg=theme.TEXT, highlightbackground=theme.EDGE, highlightcolor=theme.ACCENT
        )
        self.shown.pack(fill="x")
        self.shown.bind("<Configure>", lambda event: self._show_every_line())
        self.shown.bind("<Button-1>", lambda event: self.shown.focus_set())  # for Ctrl+C
        self.shown.bind("<<SelectAll>>", handler(self._select_all))
        self.content = ""  # the command
        self.show(content)

    def show(self, content: str) -> None:
        """Replace the command."""
        if self.content != content:
            self.content = content
            self.shown.configure(state="normal")
            self.shown.replace("1.0", tk.END, visible(content))
            self.shown.configure(state="disabled")
            self._show_every_line()

    def _show_every_line(self) -> None:
        if self.shown.winfo_width() == 1:  # it has no place yet, and would need a line for each character
            return
        counted = self.shown.count("1.0", "end", "displaylines")
        lines = counted[0] if isinstance(counted, tuple) else int(counted or 1)
        if lines != int(self.shown.cget("height")):
            self.shown.configure(height=lines)

    def _select_all(self) -> None:
        self.shown.tag_add(tk.SEL, "1.0", "end-1c")  # Tk adds a line break, with which a shell would run it at once

    def _copy(self) -> None:
        self.clipboard_clear()
        self.clipboard_append(self.content)
        self.copy.configure(text="Copied")
        later(self.copy, _COPIED_MS, lambda: self.copy.configure(text="Copy"))


def _table_of(parent: tk.Misc, rows: Sequence[tuple[str, str]]) -> tk.Frame:
    """In the font of commands, in which two hyphens are no dash."""
    made = frame(parent)
    for row, (option, purpose) in enumerate(rows):
        text(made, option, "mono", colour=theme.MUTED).grid(row=row, column=0, sticky="w", padx=(0, theme.px(16)))
        text(made, purpose, "small", colour=theme.MUTED).grid(row=row, column=1, sticky="w")
    return made
