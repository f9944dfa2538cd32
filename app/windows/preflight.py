"""The preflight check, run in a child process, and the table of its results."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Segments, frame, text
from app.widgets.table import table
from app.windows.child_program import ProgramWindow
from modules import ROOT
from modules.config import save_config
from modules.files import FileFault, read_text
from modules.run.preflight_report.report import PreflightReport

SCRIPT = ROOT / "scripts" / "preflight.py"
_DEPTHS: Final = {"Quick": "basic", "Thorough": "all"}
_STATES: Final = {"green": "ok", "yellow": "note", "red": "failed", "grey": "-"}


class PreflightWindow(ProgramWindow):
    """Runs scripts/preflight.py with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(
            parent,
            state,
            "Preflight check",
            "Tests devices, network, disks and images with these settings, without training.",
        )
        self.report: PreflightReport | None = None
        head = frame(self.dialog.body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        self.depth = Segments(head, list(_DEPTHS), lambda _: None, bg=theme.CARD)
        self.depth.set(next(iter(_DEPTHS)))
        self.depth.pack(side="left")
        self.status = text(head, font="strong", wrap=600)
        self.status.pack(side="left", padx=theme.px(16))
        table_frame = frame(self.dialog.body)
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
        self._advice = text(self.dialog.body, colour=theme.MUTED, wrap=900)
        self._advice.pack(fill="x", pady=(theme.px(8), 0))
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_advice())
        self.dialog.button("Close", self.dialog.close)
        self.button = self.dialog.button("Check again", self.start, "accent")

    def start(self) -> None:
        """Check the current settings."""
        config = self.state.draft.config
        if config is None:
            self.show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self.child is not None:
            return
        file, self._result = self.file("config.json"), self.file("report.json")
        self._result.unlink(missing_ok=True)
        save_config(config, file)
        self.table.delete(*self.table.get_children())
        self.report = None
        self.button.configure(state="disabled")
        self.show_status("Checking …", theme.MUTED)
        self.run(SCRIPT, ["--config", str(file), "--json", str(self._result), "--test", _DEPTHS[self.depth.get()]])

    def ended(self, exit_code: int, output: str) -> None:
        """Show the verdict, or why there is none."""
        self.button.configure(state="normal")
        if self.report is None:
            self.show_status(output.splitlines()[-1] if output else "The check terminated unexpectedly.", theme.BAD)
        else:
            self.show_status(self.report.verdict, theme.BAD if self.report.reds else theme.GOOD)

    def progressed(self, output: str) -> None:
        """Add the cells that are new in the report."""
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
