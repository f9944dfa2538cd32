"""What a run has written: each file with the programs that open it, and the way to generate with the model."""

from __future__ import annotations

import os
import tkinter as tk
from functools import partial
from pathlib import Path
from typing import Final

from app.generate.settings import GENERATES_NOTHING
from app.open_path import show_folder, show_page
from app.runs.written import Written, format_size, what_was_written
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, frame, text
from app.widgets.scroll import Scroll
from app.windows.dialog import Dialog
from modules.facts import PROGRAM
from modules.files import FileFault, read_json
from modules.run import RunFolder

_WIDTH: Final = 640
_HIGHEST: Final = 440
_NOTHING: Final = "Nothing yet: the run has been stopped before its first backup, or its folder is gone."


def can_generate(folder: RunFolder) -> bool:
    """Whether the run's model generates images, as far as its config says."""
    try:
        config = read_json(folder.config_file)
    except (OSError, FileFault):
        return False
    family = config.get("family") if isinstance(config, dict) else None
    return isinstance(family, str) and family not in (*GENERATES_NOTHING, PROGRAM)


class ResultWindow:
    """Reads the folder in a thread; `rows` are the entries once they are shown."""

    def __init__(self, owner: tk.Misc, state: AppState, folder: RunFolder) -> None:
        self._owner, self._state, self._folder = owner, state, folder
        self.dialog = Dialog(owner, f"Result of {folder.name}", str(folder.path), modal=False)
        self.rows: list[Written] = []
        self._scroll = Scroll(self.dialog.body, theme.CARD)
        self._scroll.canvas.configure(width=theme.px(_WIDTH), height=theme.px(60))
        self._scroll.pack(fill="both", expand=True)
        self._status = text(self.dialog.body, "Reading…", colour=theme.MUTED, wrap=_WIDTH)
        self._status.pack(anchor="w", pady=(theme.px(8), 0))
        self.dialog.button("Open folder", partial(self._open, folder.path))
        self.dialog.button("Close", self.dialog.close)
        self.generate = self.dialog.button("Generate with it", self._generate, "accent")
        self.generate.configure(state="disabled")

    def show(self) -> tk.Toplevel:
        """Open the window."""
        window = self.dialog.show()
        self._state.background.run(
            lambda: (what_was_written(self._folder), can_generate(self._folder)), lambda found: self._show(*found)
        )
        return window

    def _show(self, rows: list[Written], generates: bool) -> None:
        self.rows = rows
        self._status.configure(text="" if rows else _NOTHING)
        if rows:
            self._status.pack_forget()
        for row in rows:
            self._add(row)
        self._scroll.inside.update_idletasks()
        height = min(self._scroll.inside.winfo_reqheight(), theme.px(_HIGHEST))
        self._scroll.canvas.configure(height=max(height, theme.px(60)))
        if generates and any(row.is_model for row in rows):
            self.generate.configure(state="normal")

    def _add(self, row: Written) -> None:
        line = frame(self._scroll.inside)
        line.pack(fill="x", pady=(0, theme.px(10)))
        icon = "image" if row.path.name == "samples" else "backup" if "ackup" in row.title else "file"
        icons.label(line, icon, 20, theme.MUTED, theme.CARD).pack(side="left", anchor="n", padx=(0, theme.px(12)))
        Button(line, "Open", partial(self._open, row.path), bg=theme.CARD).pack(side="right", padx=(8, 4))
        first = frame(line)
        first.pack(fill="x")
        text(first, row.title, "strong").pack(side="left")
        text(first, format_size(row.size), "small", colour=theme.MUTED).pack(side="left", padx=theme.px(10))
        name = row.path.relative_to(self._folder.path)
        text(line, f"{name}   →   {row.opens}", "small", colour=theme.MUTED, wrap=_WIDTH - 130).pack(anchor="w")

    def _open(self, path: Path) -> None:
        if path.suffix == ".html" and os.path.isfile(path):
            show_page(self._state, path, self._say)
        else:
            show_folder(self._state, path if os.path.isdir(path) else path.parent, self._say)

    def _say(self, sentence: str) -> None:
        self._status.configure(text=sentence)
        self._status.pack(anchor="w", pady=(theme.px(8), 0))

    def _generate(self) -> None:
        self.dialog.close()
        self._state.views.generate(self._folder)
