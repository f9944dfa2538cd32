"""Tags and a note of a run, kept in its folder."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme
from app.widgets.buttons import Entry, TextBox, text
from app.windows.dialog import Dialog
from modules.config import ConfigError
from modules.run import RunFolder
from modules.run.folder.run_notes import MAX_NOTE, RunNotes, parse_tags, read_notes, write_notes


class RunNotesWindow:
    """The dialog; `saved` is called once the notes are written."""

    def __init__(self, owner: tk.Misc, folder: RunFolder, saved: Callable[[], object]) -> None:
        self._folder, self._saved = folder, saved
        self.dialog = Dialog(owner, f"Tags and notes of {folder.name}")
        notes, body = read_notes(folder), self.dialog.body
        text(body, "Tags, separated by spaces", "small", colour=theme.MUTED).pack(anchor="w")
        self.tags = Entry(body, bg=theme.CARD, width=480)
        self.tags.show(" ".join(notes.tags))
        self.tags.pack(fill="x", pady=(theme.px(4), theme.px(12)))
        text(body, "Notes", "small", colour=theme.MUTED).pack(anchor="w")
        self.note = TextBox(body, lambda _: None, width=480, height=180)
        self.note.show(notes.note)
        self.note.pack(fill="both", expand=True, pady=(theme.px(4), 0))
        self.message = text(body, "", "small", colour=theme.BAD, wrap=480)
        self.message.pack(anchor="w", pady=(theme.px(6), 0))
        self.dialog.button("Cancel", self.dialog.close)
        self.dialog.button("Save", self.save, "accent")
        self.dialog.window.bind("<Control-Return>", lambda event: self.save())

    def show(self) -> tk.Toplevel:
        """Open the dialog, ready to type tags."""
        window = self.dialog.show()
        self.tags.focus_set()
        return window

    def save(self) -> None:
        """Write the notes, or say why they cannot be."""
        note = self.note.get().strip()
        if len(note) > MAX_NOTE:
            self.message.configure(text=f"The note has {len(note):,} characters; at most {MAX_NOTE:,} are kept.")
            return
        try:
            write_notes(self._folder, RunNotes(note=note, tags=parse_tags(self.tags.get())))
        except ConfigError as error:
            self.message.configure(text=str(error))
        except OSError as error:
            reason = f"The notes cannot be written to {self._folder.path}: {error.strerror or error}."
            self.message.configure(text=reason)
        else:
            self.dialog.close()
            self._saved()


def edit_notes(owner: tk.Misc, folder: RunFolder, saved: Callable[[], object]) -> RunNotesWindow:
    """Open the dialog."""
    made = RunNotesWindow(owner, folder, saved)
    made.show()
    return made
