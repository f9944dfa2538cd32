"""A question for a name."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look, texts
from app.controls import Entry, text
from app.windows.dialog import Dialog


def ask_name(owner: tk.Misc, question: str, name: str, take: Callable[[str], str]) -> tk.Toplevel:
    """Ask until `take` returns no complaint."""
    dialog = Dialog(owner, question)
    entry = Entry(dialog.body, on=look.CARD, width=320)
    entry.show(name)
    entry.pack(anchor="w")
    complaint = text(dialog.body, "", "small", colour=look.BAD, wrap=320)
    complaint.pack(anchor="w", pady=(look.px(4), 0))

    def go() -> None:
        words = take(entry.get())
        complaint.configure(text=words)
        if not words:
            dialog.close()

    dialog.on_return(go)
    dialog.button(texts.CANCEL, dialog.close)
    dialog.button(texts.SAVE, go, "accent")
    window = dialog.show()
    entry.focus_set()
    entry.select_range(0, "end")
    return window
