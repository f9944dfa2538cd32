"""The backups of a run: a table, and scripts/backup.py to check them, go back to one and remove old ones."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable

from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import frame, text
from app.widgets.table import table
from app.windows.child_program import ProgramWindow
from modules import ROOT
from modules.files import FileFault, Record, printable, read_json, validate_record
from modules.run import RunFolder

SCRIPT = ROOT / "scripts" / "backup.py"
_READING = "Reading…"


class Backup(Record):
    """What `scripts/backup.py list --json` says of one backup."""

    folder: str
    written: float  # seconds since 1970
    bytes: int
    step: int | None
    epochs: float | None
    fault: str


class BackupsWindow(ProgramWindow):
    """Lists the backups of a run, the newest first; scripts/backup.py reads and changes them."""

    def __init__(self, parent: tk.Misc, state: AppState, folder: RunFolder) -> None:
        message = "Each holds everything needed to continue the run exactly."
        super().__init__(parent, state, f"Backups of {folder.name}", message)
        self._run = folder
        self.backups: dict[str, Backup] = {}
        self._then: Callable[[int, str], object] = lambda exit_code, output: None
        holder = frame(self.dialog.body)
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
        self.table = table(holder, columns, ("step", "epochs", "size"))
        theme.follow(self.table, "damaged", self._colour_rows)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._on_select())
        self.status = text(self.dialog.body, "", colour=theme.MUTED, wrap=740)
        self.status.pack(fill="x", pady=(theme.px(8), 0))
        self.remove_button = self.dialog.button("Remove old ones…", self._ask_to_remove)
        self.verify_button = self.dialog.button("Check all files", self.verify)
        self.dialog.button("Close", self.dialog.close)
        self.restore_button = self.dialog.button("Continue from this one", self.restore, "accent")
        self._show_buttons()

    def start(self) -> None:
        """Read the list."""
        self._read("list", "complete", "")

    def verify(self) -> None:
        """Read every file of all backups."""
        self._read("verify", "undamaged", "All checksums were compared.")

    def restore(self) -> None:
        """Let the run continue from the selected backup."""
        (folder,) = self.table.selection()
        step = self.backups[folder].step
        self._changed_by(
            ["restore", str(step)], f"Resume now continues at step {step}. The other backups are still there."
        )

    def ended(self, exit_code: int, output: str) -> None:
        """Show what came of it."""
        self._show_buttons()
        self._then(exit_code, output)

    def _ask_to_remove(self) -> None:
        self._call(["prune", "--dry_run"], self._confirm_removal)

    def _confirm_removal(self, exit_code: int, output: str) -> None:
        if exit_code or output.startswith("Nothing"):
            self.show_status(_last_line(output), theme.BAD if exit_code else theme.MUTED)
            return

        def answered(answer: str) -> None:
            if answer:
                self._changed_by(["prune", "--yes"], "The old ones are removed.")

        choices = [Choice("", "Cancel", "accent"), Choice("remove", "Remove")]
        question = f"{printable(output)}\n\nThe newest ones stay, as many as “Backups kept” of this run says."
        ask(self.dialog.window, "Remove old backups?", question, choices, answered)

    def _changed_by(self, arguments: list[str], message: str) -> None:
        """Read the list anew after this, and then show `message`."""

        def then(exit_code: int, output: str) -> None:
            if exit_code:
                self.show_status(_last_line(output), theme.BAD)
            else:
                self._read("list", "complete", message)

        self._call(arguments, then)

    def _read(self, action: str, state: str, message: str) -> None:
        """Fill the table with what `list` or `verify` says; `state` is that of undamaged backups."""
        file = self.file("backups.json")
        file.unlink(missing_ok=True)

        def then(exit_code: int, output: str) -> None:
            try:
                found = validate_record(list[Backup], read_json(file))
            except (OSError, FileFault):
                self.show_status(_last_line(output), theme.BAD)
            else:
                self._fill(found, state, message)

        self._call([action, "--json", str(file)], then)

    def _fill(self, found: list[Backup], state: str, message: str) -> None:
        self.table.delete(*self.table.get_children())
        self.backups = {each.folder: each for each in found}
        for each in found:
            values = _row(each, state)
            self.table.insert("", "end", iid=each.folder, values=values, tags=("damaged",) if each.fault else ())
        damaged = sum(bool(each.fault) for each in found)
        if damaged:
            self.show_status(
                f"{damaged} of {len(found)} cannot be used. Resume takes the newest undamaged one.", theme.BAD
            )
        else:
            self.show_status(message or ("" if found else "This run has no backups yet."), theme.MUTED)
        self._show_buttons()

    def _call(self, arguments: list[str], then: Callable[[int, str], object]) -> None:
        """Run scripts/backup.py, and call `then` with its exit code and what it said."""
        if self.child is not None:
            return
        self._then = then
        self.show_status(_READING, theme.MUTED)
        self.run(SCRIPT, [arguments[0], str(self._run.path), *arguments[1:]])
        self._show_buttons()

    def _on_select(self) -> None:
        for folder in self.table.selection():
            if folder in self.backups and (fault := self.backups[folder].fault):
                self.show_status(printable(fault), theme.BAD)
        self._show_buttons()

    def _show_buttons(self) -> None:
        selected = [self.backups[folder] for folder in self.table.selection() if folder in self.backups]
        usable = len(selected) == 1 and not selected[0].fault
        for button, is_possible in (
            (self.remove_button, len(self.backups) > 1),
            (self.verify_button, bool(self.backups)),
            (self.restore_button, usable),
        ):
            button.configure(state="normal" if is_possible and self.child is None else "disabled")

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


def _last_line(output: str) -> str:
    lines = output.splitlines()
    return printable(lines[-1]) if lines else "The program terminated unexpectedly."
