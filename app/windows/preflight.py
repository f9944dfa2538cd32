"""The preflight check, run in a child process, and the table of its results."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from app.form.setting_text import setting_title
from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Segments, frame, text, wrap_within
from app.widgets.copy_line import CopyLine
from app.widgets.table import table
from app.windows.child_program import ProgramWindow
from modules import ROOT
from modules.config import TrainConfig, save_config
from modules.files import FileFault, read_text
from modules.run.exit_codes import INTERRUPTED
from modules.run.preflight_report.report import OtherMachine, PreflightReport
from modules.run.preflight_report.start import WAITING

SCRIPT = ROOT / "scripts" / "preflight.py"
_MAX_LINES: Final = 3  # of commands for other machines
_START_THERE: Final = "Run these in Tandem's folder there; each machine needs this config file at the same path."
_NOBODY_YET: Final = "No other machine has joined yet."
_DEPTHS: Final = {"Quick": "basic", "Thorough": "all"}
_STATES: Final = {"green": "ok", "yellow": "note", "red": "failed", "grey": "-"}


class PreflightWindow(ProgramWindow):
    """Runs scripts/preflight.py with the current settings.

    For several machines `save` is called first if they are not in a file, which the other machines need.
    """

    def __init__(self, parent: tk.Misc, state: AppState, save: Callable[[], object]) -> None:
        super().__init__(
            parent,
            state,
            "Preflight check",
            "Tests devices, network, disks and images with these settings, without training.",
        )
        self._save = save
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
        self.waiting = frame(table_frame)
        self._joined = text(self.waiting, _NOBODY_YET, colour=theme.MUTED)
        wrap_within(self._joined, self.waiting, margin=0)
        self.lines: list[CopyLine] = []
        self._advice = text(self.dialog.body, colour=theme.MUTED, wrap=900)
        self._advice.pack(fill="x", pady=(theme.px(8), 0))
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_advice())
        self.dialog.button("Close", self.dialog.close)
        self.button = self.dialog.button("Check again", self.start_or_stop, "accent")

    def start(self) -> None:
        """Check the current settings."""
        config = self.state.draft.config
        if config is None:
            self.show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self.child is not None:
            return
        if unknown := _unknown_processes(config):
            self.show_status("The number of processes is unknown.", theme.BAD)
            self._advice.configure(text=unknown)
            return
        self._advice.configure(text="")
        file = self._config_file(config)
        if file is None:
            self.show_status("The other machines need the config file: save the settings, then check again.", theme.BAD)
            return
        self._result = self.file("report.json")
        self._result.unlink(missing_ok=True)
        self.waiting.place_forget()
        self.table.delete(*self.table.get_children())
        self.report = None
        self.button.configure(text="Stop")
        self.show_status("Checking…", theme.MUTED)
        self.run(SCRIPT, ["--config", str(file), "--json", str(self._result), "--test", _DEPTHS[self.depth.get()]])

    def ended(self, exit_code: int, output: str) -> None:
        """Show the verdict, or why there is none."""
        self.button.configure(text="Check again")
        self.waiting.place_forget()
        if self.is_stopping or exit_code == INTERRUPTED:
            self.show_status("Stopped before all was checked.", theme.MUTED)
        elif self.report is None or not self.report.cells:
            self.show_status(output.splitlines()[-1] if output else "The check terminated unexpectedly.", theme.BAD)
        else:
            self.show_status(self.report.verdict, theme.BAD if self.report.reds else theme.GOOD)

    def progressed(self, output: str) -> None:
        """Add the cells that are new in the report."""
        try:
            report = PreflightReport.parse(read_text(self._result))
        except (OSError, FileFault):
            return
        if report.waits_for and not report.cells:
            self._show_waiting(report.waits_for, output)
            return
        self.waiting.place_forget()
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

    def _config_file(self, config: TrainConfig) -> Path | None:
        """The file with the settings to check; None if the other machines need one and there is none."""
        draft = self.state.draft
        if config.num_nodes > 1:
            if draft.file is None or draft.is_dirty:
                self._save()
            return None if draft.file is None or draft.is_dirty else draft.file.absolute()
        file = self.file("config.json")
        save_config(config, file)
        return file

    def _show_waiting(self, others: Sequence[OtherMachine], output: str) -> None:
        """In place of the table: what to start on the other machines, and who has joined."""
        commands = [other.command for other in others[:_MAX_LINES]]
        if [line.entry.get() for line in self.lines] != commands:
            for child in self.waiting.winfo_children():
                if child is not self._joined:
                    child.destroy()
            text(self.waiting, _START_THERE, colour=theme.MUTED, wrap=900).pack(anchor="w")
            self.lines = []
            for other in others[:_MAX_LINES]:
                line = CopyLine(self.waiting, f"Machine {other.node_rank}", other.command)
                line.pack(fill="x", pady=(theme.px(10), 0))
                self.lines.append(line)
            if others[_MAX_LINES:]:
                numbers = ", ".join(str(other.node_rank) for other in others[_MAX_LINES:])
                more = f"Machines {numbers}: the same with their numbers as node_rank."
                text(self.waiting, more, colour=theme.MUTED).pack(anchor="w", pady=(theme.px(10), 0))
            self._joined.pack(fill="x", pady=(theme.px(12), 0))
        if not self.waiting.winfo_manager():
            self.show_status("Waiting for the other machines…", theme.MUTED)
            self.waiting.place(relwidth=1, relheight=1)
            self.waiting.lift()
        said = [line for line in output.splitlines() if line.startswith(WAITING)]
        self._joined.configure(text=said[-1] if said else _NOBODY_YET)

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


def _unknown_processes(config: TrainConfig) -> str:
    """What to do where the machines are to count their own processes, as Train lets them when they join; or ""."""
    if config.num_nodes == 1 or config.processes_per_node is not None or config.world_size is not None:
        return ""
    titles = {path: setting_title(path) for path in ("processes_per_node", "world_size")}
    example = ", ".join(["2"] * min(config.num_nodes, 4)) + (" …" if config.num_nodes > 4 else "")
    return (
        "Train lets each machine count its GPUs when it joins; this check needs the numbers before. Enter one for "
        f"each machine as “{titles['processes_per_node']}” under Multi-GPU, such as {example}, or their sum as "
        f"“{titles['world_size']}”, and check again. They can be removed afterwards."
    )
