"""F1: the keyboard shortcuts."""

from __future__ import annotations

import tkinter as tk

from app import look, texts
from app.controls import frame, text
from app.windows.dialog import Dialog

LEFT = (0, 2, 5)  # the groups of the left column, so that both are equally long


def show_shortcuts(owner: tk.Misc) -> tk.Toplevel:
    """The list in two columns."""
    dialog = Dialog(owner, texts.SHORTCUTS_TITLE)
    columns = [frame(dialog.body), frame(dialog.body)]
    for place, column in enumerate(columns):
        column.grid(row=0, column=place, sticky="n", padx=(0, look.px(40) if place == 0 else 0))
    for number, (group, keys) in enumerate(texts.SHORTCUTS):
        column = columns[0 if number in LEFT else 1]
        text(column, group, "heading").pack(anchor="w", pady=(look.px(8), look.px(2)))
        table = frame(column)
        table.pack(fill="x")
        for row, (key, meaning) in enumerate(keys):
            text(table, meaning).grid(row=row, column=0, sticky="w", pady=look.px(1))
            shown = text(table, f" {key} ", "mono", colour=look.MUTED)
            shown.grid(row=row, column=1, sticky="e", padx=(look.px(24), 0))
            table.grid_columnconfigure(0, minsize=look.px(170))
            table.grid_columnconfigure(1, weight=1)
    dialog.window.bind("<F1>", lambda event: dialog.close())
    dialog.button(texts.CLOSE, dialog.close, "accent").focus_set()
    return dialog.show()
