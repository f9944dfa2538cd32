"""The settings of another trainer: what became of each of them, and opening the result."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path

from app import look, texts
from app.ask import Choice, ask
from app.controls import Button, Segments, frame, text
from app.state import AppState
from app.table import table
from app.windows.chooser import choose
from app.windows.dialog import Dialog
from modules.config.explain import show
from modules.config.importing import Entry, Imported, import_file

ENDINGS = (".json", ".toml", ".yaml", ".yml")
ROWS = 12
COLUMN_WIDTHS = (240, 240, 300)


def import_settings(window: tk.Tk, state: AppState) -> None:
    """Ask for a file, then show what becomes of it."""
    name = choose(window, "open", texts.IMPORT_CHOOSE, Path(), ENDINGS)
    if not name:
        return

    def refused(why: str) -> None:
        ask(window, texts.CANNOT_OPEN, why, (Choice("", texts.CLOSE, "accent"),), lambda answer: None)

    state.background.run(partial(import_file, name), lambda found: show_import(window, state, found), refused)


def show_import(window: tk.Tk, state: AppState, imported: Imported) -> tk.Toplevel:
    """The three lists, and a button that opens the result as settings that are not saved yet."""
    return _ImportWindow(window, state, imported).show()


class _ImportWindow:
    """One list at a time, with the whole sentence of the chosen row below it."""

    def __init__(self, window: tk.Tk, state: AppState, imported: Imported) -> None:
        self._state, self._imported = state, imported
        report = imported.report
        self._lists = {
            texts.IMPORT_LOST.format(count=len(report.lost)): report.lost,
            texts.IMPORT_CHANGED.format(count=len(report.changed)): report.changed,
            texts.IMPORT_TAKEN.format(count=len(report.taken)): report.taken,
        }
        words = texts.IMPORT_WORDS.format(file=report.files[0].name)
        self._dialog = Dialog(window, texts.IMPORT_TITLE.format(trainer=report.trainer), words)
        body = self._dialog.body
        self._choice = Segments(body, list(self._lists), self._show_list)
        self._choice.pack(anchor="w", pady=(0, look.px(8)))
        box = frame(body)
        box.pack(fill="both", expand=True)
        names = (texts.IMPORT_THEIRS.format(trainer=report.trainer), texts.IMPORT_OURS, texts.IMPORT_WHY)
        columns = dict(zip(("theirs", "ours", "why"), zip(names, COLUMN_WIDTHS, strict=True), strict=True))
        self._table = table(box, columns)
        self._table.configure(height=ROWS)
        self._table.bind("<<TreeviewSelect>>", lambda event: self._tell())
        self._said = text(body, "", colour=look.MUTED, wrap=sum(COLUMN_WIDTHS))
        self._said.configure(height=4, anchor="nw", justify="left")
        self._said.pack(fill="x", pady=(look.px(8), 0))
        self._copy: Button = self._dialog.button(texts.IMPORT_COPY, self._copy_lists)
        self._dialog.button(texts.CANCEL, self._dialog.close)
        self._dialog.button(texts.IMPORT_OPEN, self._open, "accent")
        self._dialog.on_return(self._open)
        first = next((words for words, entries in self._lists.items() if entries), next(iter(self._lists)))
        self._choice.set(first)
        self._show_list(first)

    def show(self) -> tk.Toplevel:
        """Place it and give it the keyboard."""
        window = self._dialog.show()
        self._table.focus_set()
        return window

    def _show_list(self, words: str) -> None:
        self._entries: tuple[Entry, ...] = self._lists[words]
        self._table.delete(*self._table.get_children())
        has_ours = any(entry.ours for entry in self._entries)
        self._table.configure(displaycolumns=("theirs", "ours", "why") if has_ours else ("theirs", "why"))
        for number, entry in enumerate(self._entries):
            becomes = f"{entry.ours} {show(entry.becomes)}" if entry.ours else ""
            self._table.insert("", "end", iid=str(number), values=(_theirs(entry), becomes, entry.why))
        self._said.configure(text="" if self._entries else texts.IMPORT_EMPTY)
        if self._entries:
            self._table.selection_set("0")
            self._table.focus("0")

    def _tell(self) -> None:
        chosen = self._table.selection()
        if chosen:
            self._said.configure(text=str(self._entries[int(chosen[0])]))

    def _copy_lists(self) -> None:
        window = self._dialog.window
        window.clipboard_clear()
        window.clipboard_append("\n".join(self._imported.report.lines()))
        self._copy.configure(text=texts.IMPORT_COPIED)

    def _open(self) -> None:
        self._dialog.close()
        self._state.draft.open_config(self._imported.config, is_new=True)
        self._state.notify("draft")


def _theirs(entry: Entry) -> str:
    if entry.given:
        return f"{entry.theirs} {show(entry.value)}"
    return texts.IMPORT_ABSENT.format(name=entry.theirs, value=show(entry.value))
