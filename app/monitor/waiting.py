"""The line that other machines need to join a run, and who of them has come: shown while they are waited for."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app import look, texts
from app.controls import Button, card, frame, text, wrap_within
from app.invitation import Invitation

_COPIED_MS: Final = 1600


class WaitingCard:
    """A card of the monitor; `show` is called again and again and draws only what is new."""

    def __init__(self, parent: tk.Misc, before: tk.Misc) -> None:
        self.frame = card(parent)
        self._before = before
        self._shown: Invitation | None = None
        head = frame(self.frame)
        head.pack(fill="x", padx=look.px(16), pady=(look.px(12), look.px(6)))
        text(head, texts.JOIN_TITLE, "strong").pack(side="left")
        self.copy = Button(head, texts.COPY, self._copy, icon="copy", on=look.CARD)
        self.copy.pack(side="right")
        self.line = tk.Entry(
            self.frame, font=look.tk_font("mono"), relief="flat", borderwidth=0, highlightthickness=1, state="readonly"
        )
        look.paint(
            self.line,
            readonlybackground=look.FIELD,
            fg=look.TEXT,
            highlightbackground=look.FIELD_LINE,
            highlightcolor=look.ACCENT,
        )
        self.line.pack(fill="x", padx=look.px(16), ipady=look.px(6))
        self.news = text(self.frame, "", colour=look.MUTED)
        wrap_within(self.news, self.frame)
        self.news.pack(fill="x", padx=look.px(16), pady=(look.px(8), look.px(12)))

    def show(self, invitation: Invitation | None) -> None:
        """Show it, or nothing where nobody is waited for."""
        if invitation == self._shown:
            return
        former, self._shown = self._shown, invitation
        if invitation is None:
            self.frame.pack_forget()
            return
        if former is None:
            # a control of customtkinter, which scales by itself
            self.frame.pack(fill="x", padx=24, pady=(0, 10), before=self._before)
        if former is None or former.line != invitation.line:
            self.line.configure(state="normal")
            self.line.delete(0, tk.END)
            self.line.insert(0, invitation.line)
            self.line.configure(state="readonly")
        self.news.configure(text="\n".join(invitation.news))

    def _copy(self) -> None:
        self.frame.clipboard_clear()
        self.frame.clipboard_append(self.line.get())
        self.copy.configure(text=texts.COPIED)
        self.line.after(_COPIED_MS, lambda: self.copy.configure(text=texts.COPY))
