"""Which folders of runs the Runs page lists beside that of the settings."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.windows.chooser import choose_path
from app.windows.dialog import Dialog
from app.windows.folder_listing import RUNS
from modules.files import whole_path


class RunFoldersWindow:
    """A row for each folder; `changed` is called after each change of the preferences."""

    def __init__(self, owner: tk.Misc, state: AppState, main: Path, changed: Callable[[], object]) -> None:
        self._preferences, self._main, self._changed = state.preferences, main, changed
        self.dialog = Dialog(owner, "Folders of runs", "Runs lists those of the settings, and of these folders:")
        self._rows = frame(self.dialog.body)
        self._rows.pack(fill="x")
        self.dialog.button("Add a folder…", self._choose)
        self.dialog.button("Close", self.dialog.close, "accent")
        self._fill()

    def show(self) -> tk.Toplevel:
        """Open the dialog."""
        return self.dialog.show()

    def add(self, folder: Path) -> None:
        """List the runs in a folder, too."""
        name = str(whole_path(folder))
        if name != str(self._main) and name not in self._preferences.runs_folders:
            self._set([*self._preferences.runs_folders, name])

    def remove(self, name: str) -> None:
        """List a folder no longer; nothing in it changes."""
        self._set([other for other in self._preferences.runs_folders if other != name])

    def _set(self, names: list[str]) -> None:
        self._preferences.runs_folders = names
        self._preferences.save()
        self._fill()
        self._changed()

    def _fill(self) -> None:
        for child in self._rows.winfo_children():
            child.destroy()
        self._row(str(self._main), "of the settings, or of the run that is followed")
        for name in self._preferences.runs_folders:
            row = self._row(name, "" if os.path.isdir(name) else "not there now")
            Button(row, "Remove", partial(self.remove, name), bg=theme.CARD).pack(side="right", padx=(12, 0))

    def _row(self, name: str, about: str) -> tk.Frame:
        row = frame(self._rows)
        row.pack(fill="x", pady=theme.px(4))
        words = frame(row)
        words.pack(side="left", fill="x", expand=True)
        text(words, name, wrap=480).pack(anchor="w")
        if about:
            text(words, about, "small", colour=theme.MUTED).pack(anchor="w")
        return row

    def _choose(self) -> None:
        if chosen := choose_path(self.dialog.window, "folder", "Add a folder of runs", self._main, counted=RUNS):
            self.add(Path(chosen))
