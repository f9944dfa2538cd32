"""What the Runs page changes about a run besides training it: name, notes, trash; and what it opens."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from app.monitor.run_list import RunSummary
from app.open_path import show_folder
from app.shell.ask import Choice, ask, ask_name
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Entry, TextBox, popup_menu, text
from app.windows.debug_package import DebugPackageWindow
from app.windows.dialog import Dialog
from app.windows.result import ResultWindow
from modules.config import ConfigError, TandemError
from modules.files.trash import Trashed, restore_all
from modules.run import RunFolder
from modules.run.folder.manage import rename_run, trash_run
from modules.run.folder.run_notes import MAX_NOTE, RunNotes, parse_tags, read_notes, write_notes
from modules.run.html_report import write_report
from modules.run.remote.run_copy import read_copy

_State = Literal["normal", "disabled"]


class RunEdits:
    """Acts on the selected runs; `say` shows a line, and `changed` has the list read anew."""

    def __init__(
        self,
        owner: tk.Misc,
        state: AppState,
        selected: Callable[[], list[RunSummary]],
        say: Callable[[str], object],
        changed: Callable[[], object],
    ) -> None:
        self._owner, self._state = owner, state
        self._selected, self._say, self._changed = selected, say, changed
        self.renamed: Path | None = None  # to be selected when the list has it

    def show_menu(self, x: int, y: int) -> None:
        """A menu of everything that can be done with the selected runs, at a place on the screen."""
        menu = popup_menu(self._owner)
        selected = self._selected()
        only: _State = "normal" if len(selected) == 1 else "disabled"
        some: _State = "normal" if selected else "disabled"
        menu.add_command(label="Show result", command=self.show_result, state=only)
        menu.add_separator()
        menu.add_command(label="Rename…", command=self.rename, state=only, accelerator="F2")
        menu.add_command(label="Tags and notes…", command=self.edit_notes, state=only)
        menu.add_command(label="Open folder", command=self.show_folder, state=only)
        menu.add_command(label="Debug package…", command=self.make_debug_package, state=only)
        menu.add_separator()
        menu.add_command(label="Move to the trash…", command=self.delete, state=some, accelerator="Del")
        if self._state.trashed_runs:
            menu.add_command(label="Take back from the trash", command=self.undo_delete)
        menu.tk_popup(x, y)

    def show_result(self) -> None:
        """What the selected run has written, and what opens it."""
        if (run := self._only()) is not None:
            ResultWindow(self._owner, self._state, run).show()

    def rename(self) -> None:
        """Ask for another name of the selected run."""
        if (run := self._only()) is None:
            return

        def accept(name: str) -> str:
            if (copy := read_copy(run)) is not None and copy.is_underway and name.strip() != run.name:
                why = f"{run.name} is still on {copy.machine} under this name"
                return f"{why}. It can be renamed once its results are here."
            try:
                renamed = rename_run(run, name.strip())
            except TandemError as error:
                return str(error)
            except OSError as error:
                return f"{error.filename or run.path} cannot be renamed: {error.strerror or error}."
            self.renamed = renamed.path
            self._moved(run, renamed)
            return ""

        ask_name(self._owner, f"Rename {run.name}", run.name, accept, "Rename")

    def edit_notes(self) -> None:
        """Edit tags and notes of the selected run."""
        if (run := self._only()) is not None:
            edit_notes(self._owner, run, self._changed)

    def show_folder(self) -> None:
        """Show the folder of the selected run in the file manager."""
        if (run := self._only()) is not None:
            show_folder(self._state, run.path, self._say)

    def make_debug_package(self) -> None:
        """Show what a debug package of the selected run would hold, and write it."""
        if (run := self._only()) is not None:
            DebugPackageWindow(self._owner, self._state, run).show()

    def delete(self) -> None:
        """Ask, then move the selected runs to the trash."""
        runs = [RunFolder(summary.path) for summary in self._selected()]
        if not runs:
            return
        is_one = len(runs) == 1
        some = f"{', '.join(run.name for run in runs[:6])}{' …' if len(runs) > 6 else ''}, with all"

        def chosen(answer: str) -> None:
            if answer:
                self._delete(runs)

        ask(
            self._owner,
            f"Move {runs[0].name if is_one else f'{len(runs)} runs'} to the trash?",
            f"{'With all its' if is_one else some} samples, backups and saved models. "
            f"“Undo” takes {'it' if is_one else 'them'} back.",
            (Choice("", "Cancel", "accent"), Choice("delete", "Move to the trash", "danger")),
            chosen,
        )

    def undo_delete(self) -> None:
        """Take back what the last deletion moved to the trash."""
        taken, self._state.trashed_runs = self._state.trashed_runs, []
        try:
            restore_all(taken)
        except OSError as error:
            self._state.trashed_runs = taken
            self._say(f"{error.filename or taken[-1].original} cannot be taken back: {error.strerror or error}.")
        else:
            self._say("Back where it was.")
        self._changed()

    def _delete(self, runs: list[RunFolder]) -> None:
        moved: list[Trashed] = []

        def work() -> list[Trashed]:
            for run in runs:
                moved.append(trash_run(run))
            return moved

        def done(found: list[Trashed]) -> None:
            self._state.trashed_runs = found
            self._forget(found)
            place = found[0].place if len(found) == 1 else found[0].place.parent
            self._say(f"Moved to {place}. “Undo” takes it back.")
            self._changed()

        def failed(reason: str) -> None:
            self._state.trashed_runs = moved
            self._forget(moved)
            self._say(reason)
            self._changed()

        self._state.background.run(work, done, failed)

    def _forget(self, moved: list[Trashed]) -> None:
        """Follow a deleted run no longer, neither now nor when the window is opened next."""
        state, gone = self._state, {each.original for each in moved}
        if Path(state.preferences.last_run).resolve() in gone:
            state.preferences.last_run = ""
        if state.run is not None and state.run.folder.path.resolve() in gone:
            state.run.detach()
            state.run = None
            state.notify("run")

    def _only(self) -> RunFolder | None:
        selected = self._selected()
        return RunFolder(selected[0].path) if len(selected) == 1 else None

    def _moved(self, before: RunFolder, after: RunFolder) -> None:
        """Let everything in the window that refers to a run refer to its new name."""
        state, old, new = self._state, before.path, after.path
        preferences = state.preferences
        preferences.recent = [moved_path(name, old, new) for name in preferences.recent]
        preferences.last_run = moved_path(preferences.last_run, old, new)
        if state.draft.file is not None:
            state.draft.file = Path(moved_path(str(state.draft.file), old, new))
        for path in ("base_model", "family_options.layout", "lora_from", "training_adapter"):
            value = state.draft.get(path)
            if isinstance(value, str) and (moved := moved_path(value, old, new)) != value:
                state.draft.set(path, moved)
        if state.run is not None and state.run.folder.path.resolve() == old.resolve():
            state.actions.follow(new)
        if after.report_file.is_file():
            state.background.run(lambda: write_report(after), lambda _: None)
        self._changed()


def moved_path(text: str, old: Path, new: Path) -> str:
    """The path after a folder was renamed, whichever way it leads there; another one is returned as it is."""
    if not text:
        return text
    for path, folder in ((Path(text), old), (Path(text).resolve(), old.resolve())):
        if path.is_relative_to(folder):
            return str(new / path.relative_to(folder))
    return text


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
