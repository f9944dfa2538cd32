"""The preflight check, run in a child process, and the table of its results."""

from __future__ import annotations

import tempfile
import tkinter as tk
from pathlib import Path
from typing import Final

from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Segments, frame, text
from app.widgets.table import table
from app.windows.child_program import ChildProgram
from app.windows.dialog import Dialog
from modules import ROOT
from modules.config import save_config
from modules.files import FileFault, read_text
from modules.run.preflight_report.report import PreflightReport

SCRIPT = ROOT / "scripts" / "preflight.py"
_POLL_MS = 250
_DEPTHS: Final = {"Quick": "basic", "Thorough": "all"}
_STATES: Final = {"green": "ok", "yellow": "note", "red": "failed", "grey": "-"}


class PreflightWindow:
    """Runs scripts/preflight.py with the current settings; closing the window stops it."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self.state = state
        self.report: PreflightReport | None = None
        self._child: ChildProgram | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-window-")
        self._dialog = Dialog(
            parent,
            "Preflight check",
            "Tests devices, network, disks and images with these settings, without training.",
            modal=False,
        )
        self._dialog.window.resizable(True, True)
        head = frame(self._dialog.body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        self.depth = Segments(head, list(_DEPTHS), lambda _: None, bg=theme.CARD)
        self.depth.set(next(iter(_DEPTHS)))
        self.depth.pack(side="left")
        self._status = text(head, font="strong", wrap=600)
        self._status.pack(side="left", padx=theme.px(16))
        table_frame = frame(self._dialog.body)
        table_frame.configure(width=theme.px(940), height=theme.px(340))
        table_frame.pack_propagate(False)
        table_frame.pack(fill="both", expand=True)
        columns = {
            "check": ("Check", 150),
            "where": ("Where", 130),
            "state": ("", 60),
            "value": ("Result", 560),
        }
        self.table = table(table_frame, columns)
        self._colour_rows()
        self._advice = text(self._dialog.body, colour=theme.MUTED, wrap=900)
        self._advice.pack(fill="x", pady=(theme.px(8), 0))
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_advice())
        self._dialog.button("Close", self._dialog.close)
        self.button = self._dialog.button("Check again", self.start, "accent")
        self._dialog.window.bind("<Destroy>", self._on_destroy, add="+")

    def show(self) -> tk.Toplevel:
        """Open the window and start the quick checks."""
        window = self._dialog.show()
        self.start()
        return window

    def start(self) -> None:
        """Check the current settings."""
        config = self.state.draft.config
        if config is None:
            self._show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self._child is not None:
            return
        file, self._result = Path(self._folder.name, "config.json"), Path(self._folder.name, "report.json")
        self._result.unlink(missing_ok=True)
        save_config(config, file)
        arguments = ["--config", str(file), "--json", str(self._result), "--test", _DEPTHS[self.depth.get()]]
        self._child = ChildProgram(SCRIPT, arguments, Path(self._folder.name, "output.txt"))
        self.table.delete(*self.table.get_children())
        self.report = None
        self.button.configure(state="disabled")
        self._show_status("Checking …", theme.MUTED)
        self._poll()

    def _poll(self) -> None:
        child = self._child
        if child is None:
            return
        self._update_table()
        if child.is_running:
            self._dialog.window.after(_POLL_MS, self._poll)
            return
        self._child = None
        output = child.output()
        self.button.configure(state="normal")
        if self.report is None:
            self._show_status(output.splitlines()[-1] if output else "The check terminated unexpectedly.", theme.BAD)
        else:
            self._show_status(self.report.verdict, theme.BAD if self.report.reds else theme.GOOD)

    def _update_table(self) -> None:
        try:
            report = PreflightReport.parse(read_text(self._result))
        except (OSError, FileFault):
            return
        shown = len(self.table.get_children())
        for number, cell in enumerate(report.cells[shown:], start=shown):
            self.table.insert(
                "",
                "end",
                iid=str(number),
                values=(cell.check, cell.where, _STATES[cell.colour], cell.value),
                tags=(cell.colour,),
            )
        self.report = report

    def _show_advice(self) -> None:
        selected = self.table.selection()
        if self.report is not None and selected:
            cell = self.report.cells[int(selected[0])]
            self._advice.configure(text=cell.advice or cell.value)

    def _colour_rows(self) -> None:
        def recolour() -> None:
            for name, colour in (("red", theme.BAD), ("yellow", theme.WARN), ("grey", theme.FAINT)):
                self.table.tag_configure(name, foreground=theme.resolve(colour))

        theme.follow(self.table, "rows", recolour)

    def _show_status(self, message: str, colour: theme.Colour) -> None:
        theme.paint(self._status, fg=colour)
        self._status.configure(text=message)

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is not self._dialog.window:
            return
        child, self._child = self._child, None
        if child is not None:
            child.stop()
        self._folder.cleanup()
