"""The join line for other machines and who has joined, shown while the run waits for them."""

from __future__ import annotations

import tkinter as tk

from app.runs.join_prompt import JoinPrompt
from app.widgets import theme
from app.widgets.buttons import card, text, wrap_within
from app.widgets.copy_text import CopyText


class WaitingCard:
    """A card of the monitor; `show` may be called repeatedly and redraws only changes."""

    def __init__(self, parent: tk.Misc, before: tk.Misc) -> None:
        self.frame = card(parent)
        self._before = before
        self._shown: JoinPrompt | None = None
        self.line = CopyText(self.frame, "Run this on each of the other machines, in Tandem's folder:")
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
        self.line.show(join_prompt.line)
        if join_prompt.by_hand:
            self.line.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), 0), before=self.messages)
        else:
            self.line.pack_forget()
        self.messages.configure(text="\n".join(join_prompt.messages))
