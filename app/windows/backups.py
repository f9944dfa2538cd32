"""The backups of a run: a table, and scripts/backup.py to check them, go back to one and remove old ones."""

from __future__ import annotations

import subprocess
import sys
import time
import tkinter as tk
from collections.abc import Callable
from functools import partial

from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import frame, text
from app.widgets.table import table
from app.windows.dialog import Dialog
from modules import ROOT
from modules.files import FileFault, Record, decode_json, printable, validate_record
from modules.run import RunFolder

SCRIPT = ROOT / "scripts" / "backup.py"
_READING = "Reading …"


class Backup(Record):
    """What `scripts/backup.py list --json` says of one backup."""

    folder: str
    written: float  # seconds since 1970
    bytes: int
    step: int | None
    epochs: float | None
    fault: str


class BackupsWindow:
    """Lists the backups of a run, the newest first; programs of their own read and change them."""

    def __init__(self, parent: tk.Misc, state: AppState, run: RunFolder) -> None:
        self.state, self.run = state, run
        self.backups: dict[str, Backup] = {}
        self.is_busy = False
        self._dialog = Dialog(
            parent,
            f"Backups of {run.name}",
            "Each holds everything needed to continue the run exactly.",
            modal=False,
        )
        self._dialog.window.resizable(True, True)
        holder = frame(self._dialog.body)
        holder.configure(width=theme.px(760), height=theme.px(260))
        holder.pack_propagate(False)
        holder.pack(fill="both", expand=True)
        columns = {
            "step": ("Step", 80),
            "epochs": ("Epoch", 70),
            "written": ("Written", 130),
            "size": ("Size", 90),
            "state": ("State", 390),
        }
        self.table = table(holder, columns)
        theme.follow(self.table, "damaged", self._colour_rows)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._on_select())
        self.message = text(self._dialog.body, "", colour=theme.MUTED, wrap=740)
        self.message.pack(fill="x", pady=(theme.px(8), 0))
        self.remove_button = self._dialog.button("Remove old ones …", self._ask_to_remove)
        self.verify_button = self._dialog.button("Check all files", self.verify)
        self.restore_button = self._dialog.button("Continue from this one", self.restore)
        self._dialog.button("Close", self._dialog.close, "accent")
        self._show_buttons()

    def show(self) -> tk.Toplevel:
        """Open the window and read the list."""
        window = self._dialog.show()
        self.reload()
        return window

    def reload(self, message: str = "") -> None:
        """Read the list anew, and then show `message`."""
        self._start(["list", "--json"], partial(self._fill, state="complete", message=message))

    def verify(self) -> None:
        """Read every file of all backups."""
        self._start(
            ["verify", "--json"], partial(self._fill, state="undamaged", message="All checksums were compared.")
        )

    def restore(self) -> None:
        """Let the run continue from the selected backup."""
        (folder,) = self.table.selection()
        step = self.backups[folder].step
        message = f"Resume now continues at step {step}. The other backups are still there."
        self._start(["restore", str(step)], lambda done: self._report(done, message))

    def _ask_to_remove(self) -> None:
        self._start(["prune", "--dry_run"], self._confirm_removal)

    def _confirm_removal(self, done: subprocess.CompletedProcess[str]) -> None:
        what = done.stdout.strip()
        if done.returncode or what.startswith("Nothing"):
            self._say(what or _last_line(done), theme.BAD if done.returncode else theme.MUTED)
            return

        def answered(answer: str) -> None:
            if answer:
                self._start(["prune", "--yes"], lambda removed: self._report(removed, _last_line(removed)))

        choices = [Choice("remove", "Remove"), Choice("", "Cancel", "accent")]
        question = f"{what}\n\nThe newest ones stay, as many as “Backups kept” of this run says."
        ask(self._dialog.window, "Remove old backups?", question, choices, answered)

    def _report(self, done: subprocess.CompletedProcess[str], message: str) -> None:
        if done.returncode:
            self._say(_last_line(done), theme.BAD)
        else:
            self.reload(message)

    def _fill(self, done: subprocess.CompletedProcess[str], state: str, message: str) -> None:
        try:
            found = validate_record(list[Backup], decode_json(done.stdout))
        except FileFault:
            self._say(_last_line(done), theme.BAD)
            return
        self.table.delete(*self.table.get_children())
        self.backups = {each.folder: each for each in found}
        for each in found:
            values = _row(each, state)
            self.table.insert("", "end", iid=each.folder, values=values, tags=("damaged",) if each.fault else ())
        damaged = sum(bool(each.fault) for each in found)
        if damaged:
            self._say(f"{damaged} of {len(found)} cannot be used. Resume takes the newest undamaged one.", theme.BAD)
        else:
            self._say(message or ("" if found else "This run has no backups yet."), theme.MUTED)
        self._show_buttons()

    def _start(self, command: list[str], then: Callable[[subprocess.CompletedProcess[str]], object]) -> None:
        """Run scripts/backup.py in a process of its own, and call `then` with what it said."""
        if self.is_busy:
            return
        self.is_busy = True
        self._say(_READING, theme.MUTED)
        self._show_buttons()
        argv = [sys.executable, str(SCRIPT), command[0], str(self.run.path), *command[1:]]

        def work() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False
            )

        def finished(done: subprocess.CompletedProcess[str]) -> None:
            self.is_busy = False
            if self._dialog.window.winfo_exists():
                self._show_buttons()
                then(done)

        def failed(message: str) -> None:
            self.is_busy = False
            self._say(message, theme.BAD)

        self.state.background.run(work, finished, failed)

    def _on_select(self) -> None:
        for folder in self.table.selection():
            if folder in self.backups and (fault := self.backups[folder].fault):
                self._say(printable(fault), theme.BAD)
        self._show_buttons()

    def _show_buttons(self) -> None:
        selected = [self.backups[folder] for folder in self.table.selection() if folder in self.backups]
        usable = len(selected) == 1 and not selected[0].fault
        for button, is_possible in (
            (self.remove_button, len(self.backups) > 1),
            (self.verify_button, bool(self.backups)),
            (self.restore_button, usable),
        ):
            button.configure(state="normal" if is_possible and not self.is_busy else "disabled")

    def _say(self, message: str, colour: theme.Colour) -> None:
        if self._dialog.window.winfo_exists():
            theme.paint(self.message, fg=colour)
            self.message.configure(text=message)

    def _colour_rows(self) -> None:
        self.table.tag_configure("damaged", foreground=theme.resolve(theme.BAD))


def _row(backup: Backup, state: str) -> tuple[str, ...]:
    return (
        "-" if backup.step is None else f"{backup.step:,}",
        "-" if backup.epochs is None else f"{backup.epochs:.2f}",
        time.strftime("%d %b %H:%M", time.localtime(backup.written)),
        f"{backup.bytes / 1e6:,.1f} MB",
        printable(backup.fault.removeprefix(f"{backup.folder} is ")) or state,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return printable(lines[-1]) if lines else "The program ended without a word."
