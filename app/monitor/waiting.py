"""The join line for other machines and who has joined, shown while the run waits for them."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.runs.join_prompt import JoinPrompt
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text, wrap_within

_COPIED_MS: Final = 1600


class WaitingCard:
    """A card of the monitor; `show` may be called repeatedly and redraws only changes."""

    def __init__(self, parent: tk.Misc, before: tk.Misc) -> None:
        self.frame = card(parent)
        self._before = before
        self._shown: JoinPrompt | None = None
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), theme.px(6)))
        text(head, "Run this on each of the other machines, in Tandem's folder:", "strong").pack(side="left")
        self.copy = Button(head, "Copy", self._copy, icon="copy", bg=theme.CARD)
        self.copy.pack(side="right")
        self.line = tk.Entry(
            self.frame, font=theme.tk_font("mono"), relief="flat", borderwidth=0, highlightthickness=1, state="readonly"
        )
        theme.paint(
            self.line,
            readonlybackground=theme.FIELD,
            fg=theme.TEXT,
            highlightbackground=theme.FIELD_LINE,
            highlightcolor=theme.ACCENT,
        )
        self.line.pack(fill="x", padx=theme.px(16), ipady=theme.px(6))
        self.messages = text(self.frame, "", colour=theme.MUTED)
        wrap_within(self.messages, self.frame)
        self.messages.pack(fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(12)))

    def show(self, join_prompt: JoinPrompt | None) -> None:
        """Show the join prompt; None hides the card."""
        if join_prompt == self._shown:
            return
        previous, self._shown = self._shown, join_prompt
        if join_prompt is None:
            self.frame.pack_forget()
            return
        if previous is None:
            # a customtkinter widget, which scales itself
            self.frame.pack(fill="x", padx=24, pady=(0, 10), before=self._before)
        if previous is None or previous.line != join_prompt.line:
            self.line.configure(state="normal")
            self.line.delete(0, tk.END)
            self.line.insert(0, join_prompt.line)
            self.line.configure(state="readonly")
        self.messages.configure(text="\n".join(join_prompt.messages))

    def _copy(self) -> None:
        self.frame.clipboard_clear()
        self.frame.clipboard_append(self.line.get())
        self.copy.configure(text="Copied")
        self.line.after(_COPIED_MS, lambda: self.copy.configure(text="Copy"))
