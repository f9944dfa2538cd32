"""What is wrong with the settings, each with a click to its field."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from app import look, texts
from app.controls import Button, frame, text
from app.state import AppState
from app.windows.dialog import Dialog

MOST = 8


def show_faults(owner: tk.Tk, state: AppState, why: str) -> tk.Toplevel:
    """The list; a click, or Return for the first, goes to the field."""
    faults = state.draft.faults
    count = len(faults)
    title = texts.FAULTS_ONE if count == 1 else texts.FAULTS_MANY.format(count=count)
    dialog = Dialog(owner, title, why)

    def go(path: str) -> None:
        dialog.close()
        state.jump_to(path)

    for fault in faults[:MOST]:
        row = frame(dialog.body)
        row.pack(fill="x", pady=look.px(4))
        text(row, fault.sentence, wrap=420).pack(side="left", fill="x", expand=True)
        Button(row, texts.SHOW, partial(go, fault.path), on=look.CARD).pack(side="right", padx=(12, 0))
    if count > MOST:
        text(dialog.body, f"… {count - MOST}", colour=look.MUTED).pack(anchor="w")
    if faults:
        dialog.on_return(lambda: go(faults[0].path))
    dialog.button(texts.CLOSE, dialog.close)
    return dialog.show()
