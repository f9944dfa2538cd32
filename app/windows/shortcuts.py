"""The list of keyboard shortcuts (F1)."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.widgets import theme
from app.widgets.buttons import frame, text
from app.widgets.scroll import Scroll
from app.windows.dialog import Dialog

LEFT = (0, 2, 5)  # groups of the left column, chosen so that both are equally long

SHORTCUTS: Final = (
    ("Files", (
        ("Ctrl+N", "New settings"), ("Ctrl+O", "Open a config"), ("Ctrl+S", "Save"), ("Ctrl+Shift+S", "Save as"),
        ("Ctrl+P", "Presets"), ("Ctrl+Q", "Close the window"),
    )),
    ("Editing", (
        ("Ctrl+Z", "Undo"), ("Ctrl+Y  Ctrl+Shift+Z", "Redo"), ("Alt+Backspace", "Reset to default"),
        ("Ctrl+I", "Help for the field"), ("F8  Shift+F8", "Next or previous error"),
    )),
    ("Finding", (
        ("Ctrl+K  Ctrl+F", "Search, commands"), ("Ctrl+1 … Ctrl+9  Ctrl+0", "Section"),
        ("Ctrl+Tab", "Next section"),
        ("Ctrl+E", "Simple or advanced"), ("Tab  Shift+Tab", "Next or previous field"),
    )),
    ("Window", (
        ("Ctrl+Plus  Ctrl+Minus", "Larger or smaller"), ("Ctrl+Alt+0", "100 %"), ("Ctrl+L", "Light, dark or system"),
        ("F1", "This list"), ("Esc", "Close a list or a window"),
    )),
    ("Lists", (
        ("Insert", "Add an item"), ("Delete", "Remove"), ("Ctrl+D", "Duplicate"), ("Alt+Up  Alt+Down", "Move"),
        ("Space", "On or off"), ("F2", "Rename a run, edit a caption"),
    )),
    ("Training", (
        ("F5", "Train"), ("F4", "Add to queue"), ("Ctrl+F5", "Resume"), ("Shift+F5", "Stop; again: force stop"),
        ("F6", "Back up now"),
        ("F7", "Generate samples now"), ("F9", "Save the model now"), ("F12", "Full error of the run"),
    )),
)  # fmt: skip


def show_shortcuts(owner: tk.Misc) -> tk.Toplevel:
    """Show the list in two columns."""
    dialog = Dialog(owner, "Keyboard shortcuts")
    area = Scroll(dialog.body, theme.CARD)
    area.pack(fill="both", expand=True)
    columns = [frame(area.inside), frame(area.inside)]
    for index, column in enumerate(columns):
        column.grid(row=0, column=index, sticky="n", padx=(0, theme.px(40) if index == 0 else 0))
    for number, (group, keys) in enumerate(SHORTCUTS):
        column = columns[0 if number in LEFT else 1]
        text(column, group, "heading").pack(anchor="w", pady=(theme.px(8), theme.px(2)))
        table = frame(column)
        table.pack(fill="x")
        for row, (key, meaning) in enumerate(keys):
            text(table, meaning).grid(row=row, column=0, sticky="w", pady=theme.px(1))
            shown = text(table, f" {key} ", "mono", colour=theme.MUTED)
            shown.grid(row=row, column=1, sticky="e", padx=(theme.px(24), 0))
            table.grid_columnconfigure(0, minsize=theme.px(170))
            table.grid_columnconfigure(1, weight=1)
    area.ask_for_all()
    dialog.window.bind("<F1>", lambda event: dialog.close())
    dialog.button("Close", dialog.close, "accent").focus_set()
    return dialog.show()
