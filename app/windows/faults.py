"""List of invalid settings, each with a button that shows its field."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.windows.dialog import Dialog

MAX_ROWS = 8


def show_faults(owner: tk.Tk, state: AppState, why: str) -> tk.Toplevel:
    """Show the list; a click, or Return for the first, goes to the field."""
    faults = state.draft.faults
    count = len(faults)
    title = "1 invalid setting" if count == 1 else f"{count} invalid settings"
    dialog = Dialog(owner, title, why)

    def go(path: str) -> None:
        dialog.close()
        state.jump_to(path)

    for fault in faults[:MAX_ROWS]:
        row = frame(dialog.body)
        row.pack(fill="x", pady=theme.px(4))
        text(row, fault.sentence, wrap=420).pack(side="left", fill="x", expand=True)
        Button(row, "Show", partial(go, fault.path), bg=theme.CARD).pack(side="right", padx=(12, 0))
    if count > MAX_ROWS:
        text(dialog.body, f"… {count - MAX_ROWS}", colour=theme.MUTED).pack(anchor="w")
    if faults:
        dialog.on_return(lambda: go(faults[0].path))
    dialog.button("Close", dialog.close)
    return dialog.show()
