"""The user's own presets: where they are, and renaming and removing them."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path

from app.open_path import show_folder
from app.shell.ask import ask_name
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.windows.dialog import Dialog
from modules.config import ConfigError, preset_names
from modules.config.io.presets import OWN, PRESETS, own_preset_file, rename_preset
from modules.files import printable
from modules.files.trash import Trashed, move_to_trash, restore_all


class OwnPresetsWindow:
    """A row for each preset; one that is removed is in the trash, from which Undo takes it back."""

    def __init__(self, owner: tk.Misc, state: AppState, presets: Path = PRESETS) -> None:
        self._state, self._presets = state, presets
        self._trashed: list[Trashed] = []
        self._folder = presets / OWN
        self.dialog = Dialog(owner, "Your presets", f"They are files in {printable(self._folder)}.")
        self._rows = frame(self.dialog.body)
        self._rows.pack(fill="x")
        self._message = text(self.dialog.body, "", "small", colour=theme.WARN, wrap=480)
        self._message.pack(anchor="w")
        self.undo_button = self.dialog.button("Undo", self.undo)
        self.dialog.button("Open folder", self._open_folder)
        self.dialog.button("Close", self.dialog.close, "accent")
        self._fill()

    def show(self) -> tk.Toplevel:
        """Open the dialog."""
        return self.dialog.show()

    def remove(self, name: str) -> None:
        """Move a preset to the trash."""
        try:
            self._trashed.append(move_to_trash(own_preset_file(name, self._presets)))
        except (OSError, ConfigError) as error:
            self._fill(f"{name} could not be moved to the trash: {error}", theme.WARN)
        else:
            self._fill(f"{name.removeprefix(f'{OWN}/')} is in the trash. “Undo” takes it back.")

    def undo(self) -> None:
        """Take the preset back that was removed last."""
        last = self._trashed.pop()
        try:
            restore_all([last])
        except OSError as error:
            self._trashed.append(last)
            self._fill(f"{last.original.stem} could not be taken back: {error.strerror}.", theme.WARN)
        else:
            self._fill()

    def rename(self, name: str) -> None:
        """Ask for another name."""

        def keep(new: str) -> str:
            try:
                renamed = rename_preset(name, new, self._presets)
            except ConfigError as error:
                return str(error)
            if self._state.draft.preset == name:
                self._state.draft.preset = renamed
                self._state.notify("draft")
            self._fill()
            return ""

        ask_name(self.dialog.window, "Preset name", name.removeprefix(f"{OWN}/"), keep, "Rename")

    def _fill(self, message: str = "", colour: theme.Colour = theme.MUTED) -> None:
        theme.paint(self._message, fg=colour)
        self._message.configure(text=message)
        self.undo_button.configure(state="normal" if self._trashed else "disabled")
        for child in self._rows.winfo_children():
            child.destroy()
        names = [name for name in preset_names(self._presets) if name.startswith(f"{OWN}/")]
        if not names:
            text(self._rows, "You have no presets.", colour=theme.MUTED).pack(anchor="w")
        for name in names:
            row = frame(self._rows)
            row.pack(fill="x", pady=theme.px(4))
            text(row, name.removeprefix(f"{OWN}/"), wrap=300).pack(side="left", fill="x", expand=True)
            Button(row, "Move to trash", partial(self.remove, name), icon="trash", bg=theme.CARD).pack(
                side="right", padx=(8, 0)
            )
            Button(row, "Rename", partial(self.rename, name), bg=theme.CARD).pack(side="right", padx=(12, 0))

    def _open_folder(self) -> None:
        show_folder(self._state, self._folder, lambda message: self._message.configure(text=message))
