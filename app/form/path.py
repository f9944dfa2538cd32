"""A file or a folder, typed or chosen; whether it is there now is looked up in the background."""

from __future__ import annotations

import os
from pathlib import Path

from app import texts
from app.controls import Button
from app.form.line import NARROWEST, TextField
from app.windows.chooser import Purpose, choose

LOOK_AGAIN_MS = 400
MADE_WHEN_NEEDED = ("cache_dir", "runs_dir")


class PathField(TextField):
    """A line of text with a button that opens the system's chooser."""

    width = NARROWEST

    def build(self) -> None:
        super().build()
        folder = self.option.picks == "folder"
        hint = texts.BROWSE_FOLDER if folder else texts.BROWSE_FILE
        self.browse = Button(self.area, icon="folder", style="plain", on=self.on, hint=hint, command=self._browse)
        self.browse.pack(side="right", padx=(4, 0), before=self.control)
        self._job = ""

    def show(self, value: object) -> None:
        super().show(value)
        self._look()

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.browse.configure(state="normal" if enabled else "disabled")

    def _typed(self, typed: str) -> None:
        super()._typed(typed)
        self._look()

    def _browse(self) -> None:
        purpose: Purpose = "folder" if self.option.picks == "folder" else "any"
        chosen = choose(self.area, purpose, self.option.title, Path(self.control.get()))
        if chosen:
            self.control.show(chosen)
            self.put(chosen)
            self._look()

    def _look(self) -> None:
        """A moment after the last keystroke, off the Tk thread: the path may lie on a network that does not answer."""
        if self._job:
            self.area.after_cancel(self._job)
        self._job = self.area.after(LOOK_AGAIN_MS, self._ask)

    def _ask(self) -> None:
        self._job = ""
        name = self.control.get()
        if not name or self.option.path in MADE_WHEN_NEEDED:
            self.note("")
            return
        self.state.background.run(lambda: os.path.exists(name), lambda there: self._told(name, there))

    def _told(self, name: str, there: bool) -> None:
        if self.area.winfo_exists() and name == self.control.get():
            missing = texts.NO_SUCH_FOLDER if self.option.picks == "folder" else texts.NO_SUCH_FILE
            self.note("" if there else missing)
