"""The settings on screen, kept in a file: a window opens with those of the last one, also if it was killed."""

from __future__ import annotations

import json
import os
import tkinter as tk
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from app.home import current_folder, with_tilde
from app.preferences import preferences_file, read_own, write_private
from app.state import AppState
from modules.config import ConfigError
from modules.config.file_access import OtherUsersFile, require_own
from modules.config.io.migrations import migrate
from modules.files import FileFault, Record, printable, read_text, validate_record
from modules.files.private import make_private_folder
from modules.files.user_folder import user_config_folder
from modules.run.folder.run_lock import file_lock

SAVE_AFTER_MS: Final = 1000  # so that typing writes once
_LARGEST: Final = 64 << 20  # bytes of a session that is kept
_Text = Annotated[str, Field(max_length=4096)]


class SavedSession(Record):
    """Which file or preset was open, and the settings where they had unsaved changes.

    `folder` is where relative paths in a file of --config start; empty: in that of the user's files.
    """

    file: _Text = ""
    folder: _Text = ""
    preset: _Text = ""
    unsaved: dict[str, Any] | None = None


class Session:
    """Follows the draft of a window, if no other one does: the first keeps the file until it is closed."""

    def __init__(self, window: tk.Misc, state: AppState, file: Path | None = None) -> None:
        self._window, self._state = window, state
        self._file = file or user_config_folder() / "session.json"
        self._job = ""
        self._written: SavedSession | None = None
        self._folder = ""  # in which the relative paths of files start, if it is not that of the user's files
        self._home = state.preferences.home
        self._lock = ExitStack()
        self._is_mine = self._acquire()
        if not self._is_mine:
            saved = self._read()
            unsaved = "" if saved is None or saved.unsaved is None else ", with unsaved changes that stay there"
            state.second_window = f"Another window is open{unsaved}."

    def follow(self, *, stays: bool) -> None:
        """Write the file a moment after each change from now on. `stays`: the window was started in a folder for the
        file of --config, to which a later window returns with that file."""
        if stays:
            self._folder = str(current_folder())
        self._state.subscribe("draft", self._schedule)
        self._state.subscribe("run", self._schedule)
        self._state.subscribe("page", self._schedule)

    def restore(self) -> str:
        """Open what the file says; returns what the user should know, or an empty string."""
        saved, message = self._read(), self._state.second_window
        if saved is None:
            return message or self._of_another_user() or self._kept("The last window's settings cannot be read.")
        if message:
            saved = saved.model_copy(update={"unsaved": None})
        draft, what = self._state.draft, saved.file or saved.preset
        elsewhere = self._enter(saved)
        try:
            if saved.file:
                require_own(Path(saved.file), "Open it yourself if you want to, or copy it")
                ambiguous = draft.open(Path(saved.file))
                message = message or ambiguous
            elif saved.preset:
                draft.open_preset(saved.preset)
        except OtherUsersFile as error:
            if saved.unsaved is None:
                return str(error)
            draft.new()
        except (ConfigError, OSError):
            if saved.unsaved is None:
                return f"{printable(what, 200)}, which was open last, cannot be opened any more."
            draft.new()
        if saved.unsaved is None:
            return message or elsewhere
        try:
            draft.replace_all(migrate(saved.unsaved, "The unsaved settings of the last window"))
        except ConfigError as error:
            return self._kept(str(error))
        return " ".join(filter(None, ("Your unsaved changes are back; Undo returns to what was saved.", elsewhere)))

    def save(self, *, keeps_edits: bool) -> None:
        """Write the file now, unless another window has it; without `keeps_edits` unsaved changes were discarded.

        A full disk is no error.
        """
        if not self._is_mine and not self._takes_over():
            return
        draft = self._state.draft
        unsaved = dict(draft.data) if keeps_edits and draft.is_dirty else None
        file = str(draft.file.absolute()) if draft.file else ""
        is_elsewhere = file and self._state.preferences.home == self._home  # else the user has chosen another folder
        folder = self._folder if is_elsewhere else ""
        now = SavedSession(file=file, folder=folder, preset=draft.preset, unsaved=unsaved)
        if now != self._written:
            self._written = now
            write_private(self._file, json.dumps(now.model_dump()))

    def close(self) -> None:
        """The window closes, and the user has saved or discarded what there was."""
        if self._job:
            self._window.after_cancel(self._job)
        self.save(keeps_edits=False)
        self._lock.close()

    def _enter(self, saved: SavedSession) -> str:
        """Make the folder of the file the current one; returns where relative paths start, if it is elsewhere."""
        if not (saved.file and saved.folder):
            return ""
        try:
            os.chdir(saved.folder)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            return (
                f"{printable(saved.folder, 200)}, where the relative paths of this file start, cannot be used: {why}. "
                f"They start in {current_folder()}."
            )
        self._folder = saved.folder
        return f"Relative paths of this file start in {with_tilde(Path(saved.folder))}, where it was opened."

    def _acquire(self) -> bool:
        """Keep the file, unless another window does; where no lock can be written, nobody is known to."""
        lock, is_mine = ExitStack(), True
        with suppress(OSError):
            make_private_folder(self._file.parent)
            is_mine = lock.enter_context(file_lock(self._file.with_suffix(".lock")))
        if is_mine:
            self._lock = lock
        else:
            lock.close()
        return is_mine

    def _takes_over(self) -> bool:
        """Keep the file that another window has left, unless it was killed: the next window gets what is unsaved."""
        if not self._acquire():
            return False
        saved = self._read()
        self._is_mine = saved is None or saved.unsaved is None
        if not self._is_mine:
            self._lock.close()
        else:
            self._state.second_window = ""
            self._state.notify("draft")
        return self._is_mine

    def _read(self) -> SavedSession | None:
        try:
            return validate_record(SavedSession, read_own(self._file))
        except (OSError, FileFault):
            return None

    def _kept(self, why: str) -> str:
        """Keep a copy of what this program cannot read, such as a newer one's: the next save replaces the session.

        The reason, and where the copy is; empty without a file.
        """
        kept = self._file.with_name("session-unread.json")
        try:
            write_private(kept, read_text(self._file, _LARGEST))
        except FileNotFoundError:
            return ""
        except (OSError, FileFault):
            return why
        return f"{why} They are kept in {kept}." if kept.is_file() else why

    def _of_another_user(self) -> str:
        """Why the settings of the last window are not back, if the file that has them is another user's."""
        try:
            for file in (self._file, preferences_file()):
                require_own(file, "What you change is not kept there; move it away, or make it yours (chown)")
        except OtherUsersFile as error:
            return str(error)
        return ""

    def _schedule(self) -> None:
        if not self._job:
            self._job = self._window.after(SAVE_AFTER_MS, self._save_scheduled)

    def _save_scheduled(self) -> None:
        self._job = ""
        self._state.preferences.save()  # which has the followed run and the page in sight
        self.save(keeps_edits=True)
