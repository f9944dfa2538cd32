"""Import of another trainer's settings: what became of each, and opening the result."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path

from app.dry_run import dry_run
from app.form.setting_text import setting_title
from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Segments, frame, text, wrap_within
from app.widgets.progress_bar import ProgressBar
from app.widgets.table import table
from app.windows.chooser import choose_path
from app.windows.dialog import Dialog
from modules.config import TrainConfig, find_option
from modules.config.explain import format_value
from modules.files import printable
from modules.importers import PROBLEMS, ImportEntry, ImportResult, import_file

ENDINGS = (".json", ".toml", ".yaml", ".yml")
VISIBLE_ROWS = 12
COLUMNS = ("source", "target", "why")
COLUMN_WIDTHS = (240, 240, 300)


def import_settings(window: tk.Tk, state: AppState) -> None:
    """Ask for a file, import it while a dialog says so, and show the report."""
    name = choose_path(window, "open", "Settings of another trainer", Path(), ENDINGS)
    if not name:
        return
    waiting = Dialog(
        window, f"Importing {Path(name).name}", "Reading its settings, then checking what a run with them would need…"
    )
    progress = ProgressBar(waiting.body)
    progress.pack(fill="x")
    progress.show(None, busy=True)
    waiting.button("Cancel", waiting.close)

    def show(found: ImportResult) -> None:
        if waiting.window.winfo_exists():  # otherwise it was cancelled
            waiting.close()
            show_import(window, state, found)

    def show_error(why: str) -> None:
        if waiting.window.winfo_exists():
            waiting.close()
            ask(window, "Cannot open this file", why, (Choice("", "Close", "accent"),), lambda answer: None)

    waiting.show()
    state.background.run(partial(import_and_check, name), show, show_error)


def import_and_check(file: str | Path) -> ImportResult:
    """Import a file, and find out what keeps the result from starting; slow."""
    found = import_file(file)
    return found.with_problems(dry_run(found.config))


def show_import(window: tk.Tk, state: AppState, imported: ImportResult) -> tk.Toplevel:
    """Show the report and a button that opens the result as unsaved settings."""
    return ImportWindow(window, state, imported).show()


class ImportWindow:
    """One list at a time, with the full text of the selected row below it."""

    def __init__(self, window: tk.Tk, state: AppState, imported: ImportResult) -> None:
        self._state, self._imported = state, imported
        report = imported.report
        self._lists: dict[str, tuple[ImportEntry, ...] | tuple[str, ...]] = {
            f"{heading} ({len(entries)})": entries for heading, entries in report.groups()
        }
        if report.problems:
            self._lists = {f"{PROBLEMS} ({len(report.problems)})": report.problems, **self._lists}
        message = (
            f"How each setting of {printable(report.files[0].name)} was imported. The file is not modified; the result "
            "opens as new settings."
        )
        self._dialog = Dialog(window, f"Settings of {report.trainer}", message)
        body = self._dialog.body
        self._tabs = Segments(body, list(self._lists), self._show_list)
        self._tabs.pack(anchor="w", pady=(0, theme.px(8)))
        box = frame(body)
        names = (f"In {report.trainer}", "Here", "Why")
        columns = dict(zip(COLUMNS, zip(names, COLUMN_WIDTHS, strict=True), strict=True))
        self._table = table(box, columns)
        self._table.configure(height=VISIBLE_ROWS)
        self._table.bind("<<TreeviewSelect>>", lambda event: self._show_detail())
        below = frame(body)
        self._detail = text(below, "", colour=theme.MUTED)
        self._detail.configure(height=4, anchor="nw", justify="left")
        self._detail.pack(fill="x")
        wrap_within(self._detail, below, margin=0)
        box.update_idletasks()
        # as wide as all columns also while a list has fewer, so that the buttons do not move
        below.configure(width=box.winfo_reqwidth(), height=self._detail.winfo_reqheight())
        below.pack_propagate(False)
        below.pack(side="bottom", fill="x", pady=(theme.px(8), 0))  # before the table, which gives way to it
        box.pack(fill="both", expand=True)
        self._copy: Button = self._dialog.button("Copy the lists", self._copy_lists)
        self._dialog.button("Cancel", self._dialog.close)
        self._dialog.button("Open", self._open, "accent")
        self._dialog.on_return(self._open)
        first = next((title for title, entries in self._lists.items() if entries), next(iter(self._lists)))
        self._tabs.set(first)
        self._show_list(first)

    def show(self) -> tk.Toplevel:
        """Show it with the focus on the table."""
        window = self._dialog.show()
        self._table.focus_set()
        return window

    def _show_list(self, title: str) -> None:
        self._entries = self._lists[title]
        self._table.delete(*self._table.get_children())
        rows = [_row(entry) for entry in self._entries]
        shown = [name for name, cells in zip(COLUMNS, zip(*rows, strict=True), strict=False) if any(cells)]
        self._table.show_columns(shown or COLUMNS[:1])
        for number, row in enumerate(rows):
            self._table.insert("", "end", iid=str(number), values=row)
        self._detail.configure(text="" if self._entries else "No items")
        if self._entries:
            self._table.selection_set("0")
            self._table.focus("0")

    def _show_detail(self) -> None:
        selected = self._table.selection()
        if selected:
            self._detail.configure(text=str(self._entries[int(selected[0])]))

    def _copy_lists(self) -> None:
        window = self._dialog.window
        window.clipboard_clear()
        window.clipboard_append("\n".join(self._imported.report.lines()))
        self._copy.configure(text="Copied")

    def _open(self) -> None:
        """Open the settings, show the first field that is still to be set, and say what there is."""
        self._dialog.close()
        report = self._imported.report
        name = printable(report.files[0].name)
        self._state.draft.open_config(self._imported.config, is_new=True, origin=f"From {name}")
        self._state.notify("draft")
        due = [path for each in report.problems if find_option(TrainConfig, path := each.split(" ")[0].rstrip(":"))]
        self._state.jump_to(due[0] if due else "family")
        left = f" Still to be set: {', '.join(map(setting_title, dict.fromkeys(due)))}." if due else ""
        self._state.say(f"The settings of {name} are open.{left}")


def _row(entry: ImportEntry | str) -> tuple[str, str, str]:
    """The cells of a setting, or of a sentence about what is missing."""
    if isinstance(entry, str):
        return "", "", entry
    target = f"{entry.target} {format_value(entry.new_value)}" if entry.target else ""
    return _source_text(entry), target, entry.why


def _source_text(entry: ImportEntry) -> str:
    if entry.given:
        return f"{entry.source} {format_value(entry.value)}"
    return f"{entry.source} {format_value(entry.value)} (default there)"
