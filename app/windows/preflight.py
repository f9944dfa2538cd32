"""The preflight check, run in a child process, and the table of its results."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from app.form.setting_text import with_titles
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Segments, frame, text, wrap_within
from app.widgets.copy_text import CopyText
from app.widgets.later import later
from app.widgets.table import table
from app.windows.child_program import ProgramWindow
from modules import ROOT
from modules.config import ConfigError, TrainConfig
from modules.files import FileFault, printable, read_text
from modules.run.exit_codes import INTERRUPTED
from modules.run.join.join_token import JOIN_TOKEN, generate_token, with_token
from modules.run.preflight_report.report import PreflightReport
from modules.run.preflight_report.start import WAITING

SCRIPT = ROOT / "scripts" / "preflight.py"
_REMOTE: Final = SCRIPT.with_name("remote.py")
_MAX_LINES: Final = 3  # of commands for other machines
_MAX_MESSAGES: Final = 6  # about the machines that join
_START_THERE: Final = "Run these in Tandem's folder there; each machine needs this config file at the same path."
_JOIN_THERE: Final = "Run this in Tandem's folder there. It needs no config file; each machine counts its own GPUs."
_CLICK_A_ROW: Final = "Click a row to read all of it, and what to do about it."
_EXPLAINED: Final = {
    "all-reduce": "All-reduce: every process gets the sum over all processes, as for the gradients in each step.",
    "pairs": "Each pair of processes exchanges data, to find a slow or broken connection.",
    "speed": "All processes multiply matrices at the same time; a slow one holds up the others (“Load balancing”).",
}
_TABLE_HEIGHT, _ADVICE_HEIGHT = 320, 64  # unscaled; of three lines, longer ones take room from the table
_LEAST_TABLE_HEIGHT: Final = 120
_NOBODY_YET: Final = "No other machine has joined yet."
_DEPTHS: Final = {"Quick": "basic", "Thorough": "all"}
_STATES: Final = {"green": "ok", "yellow": "note", "red": "failed", "grey": "-"}


class PreflightWindow(ProgramWindow):
    """Runs scripts/preflight.py with the current settings.

    The machines that Train would start over ssh are started. For several machines with known numbers of processes
    that are started by hand, `save` is called first if the settings are not in a file, which these machines need, with
    the reason; without these numbers the others join, and get the settings from here.
    """

    def __init__(self, parent: tk.Misc, state: AppState, save: Callable[[str], object]) -> None:
        super().__init__(
            parent,
            state,
            "Preflight check",
            f"Tests devices, network, disks and images with these settings{_on(state)}, without training.",
        )
        self._save = save
        self.report: PreflightReport | None = None
        self._token = ""  # of the current check, if the other machines join it
        self._is_there = False  # whether it is that of another machine, where Train starts runs
        head = frame(self.dialog.body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        self.depth = Segments(head, list(_DEPTHS), lambda _: None, bg=theme.CARD)
        self.depth.set(next(iter(_DEPTHS)))
        self.depth.pack(side="left")
        self.status = text(head, font="strong", wrap=600)
        self.status.pack(side="left", padx=theme.px(16))
        self._upper = table_frame = frame(self.dialog.body)
        table_frame.configure(width=theme.px(940), height=theme.px(_TABLE_HEIGHT))
        table_frame.pack_propagate(False)
        columns = {
            "check": ("Check", 170),
            "where": ("Where", 190),
            "state": ("", 60),
            "value": ("Result", 480),
        }
        self.table = table(table_frame, columns)
        self._colour_rows()
        self.waiting = frame(table_frame)
        self._joined = text(self.waiting, _NOBODY_YET, colour=theme.MUTED)
        wrap_within(self._joined, self.waiting, margin=0)
        self.lines: list[CopyText] = []
        self._saved = ""  # where the settings were, for the other machines
        self._below = below = frame(self.dialog.body)
        below.configure(height=theme.px(_ADVICE_HEIGHT))
        below.pack_propagate(False)
        below.pack(side="bottom", fill="x", pady=(theme.px(8), 0))  # before the table, which gives way to it
        table_frame.pack(fill="both", expand=True)
        self._advice = text(below, colour=theme.MUTED)
        wrap_within(self._advice, below, margin=0)
        self._advice.pack(anchor="nw")
        tk.Misc.bind(self._advice, "<Configure>", lambda event: self._fit_advice())
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_advice())
        # once it has been laid out anew
        self.table.bind("<Configure>", lambda event: later(self.table, 1, self._see_selected), add="+")
        self.dialog.button("Close", self.dialog.close)
        self.button = self.dialog.button("Check again", self.start_or_stop, "accent", widest="Check again")

    def start(self) -> None:
        """Check the current settings."""
        if (config := self.settings()) is None:
            return
        self._advice.configure(text="")
        machine = self.state.place.machine
        self._is_there = machine is not None
        if machine is not None:
            self._begin(_REMOTE, ["preflight", machine.name, self.saved(config)])
            return
        try:
            hosts = self.hosts(config)
        except ConfigError as error:
            self.show_status(str(error), theme.BAD)
            return
        joins = bool(hosts) or _counts_itself(config)
        file = self._config_file(config, by_join_line=joins)
        if file is None:
            self.show_status("The other machines need the config file: save the settings, then check again.", theme.BAD)
            return
        self._begin(SCRIPT, ["--config", str(file), *hosts], generate_token() if joins else "")

    def _begin(self, script: Path, arguments: Sequence[str], token: str = "") -> None:
        self._result = self.file("report.json")
        self._result.unlink(missing_ok=True)
        self.waiting.place_forget()
        self.table.delete(*self.table.get_children())
        self.report = None
        self.button.configure(text="Stop")
        self.show_status("Checking…", theme.MUTED)
        self._token = token
        more = ["--json", str(self._result), "--test", _DEPTHS[self.depth.get()]]
        self.run(script, [*arguments, *more], {JOIN_TOKEN: token} if token else None)

    def ended(self, exit_code: int, output: str) -> None:
        """Show the verdict, or why there is none."""
        self.button.configure(text="Check again")
        self.waiting.place_forget()
        if self.is_stopping or exit_code == INTERRUPTED:
            self.show_status("Stopped before all was checked.", theme.MUTED)
        elif self.report is None or not (self.report.reds or (self.report.cells and self.report.complete)):
            self.show_status(output.splitlines()[-1] if output else "The check terminated unexpectedly.", theme.BAD)
        else:
            self.show_status(_in_window(self.report.verdict), theme.BAD if self.report.reds else theme.GOOD)

    def progressed(self, output: str) -> None:
        """Add the cells that are new in the report."""
        try:
            report = PreflightReport.parse(read_text(self._result))
        except (OSError, FileFault):
            if output and self._is_there:  # what it sends there first
                self.show_status(printable(output.splitlines()[-1], 200), theme.MUTED)
            return
        if report.waits_for or report.joining:
            self._show_waiting(report, output)
            return
        self.waiting.place_forget()
        shown = len(self.table.get_children())
        for number, cell in enumerate(report.cells[shown:], start=shown):
            self.table.insert(
                "",
                "end",
                iid=str(number),
                values=(_in_window(cell.check), cell.where, _STATES[cell.colour], _in_window(cell.value)),
                tags=(cell.colour,),
            )
        self.report = report
        if report.cells and not self.table.selection():
            self._advice.configure(text=_CLICK_A_ROW)

    def _config_file(self, config: TrainConfig, *, by_join_line: bool) -> Path | None:
        """The file with the settings to check; None if the other machines need one and there is none."""
        draft = self.state.draft
        if config.num_nodes > 1 and not by_join_line:
            self._saved = ""
            if draft.file is None or draft.is_dirty:
                self._save("the other machines need this file")
                self._saved = "" if draft.file is None else f"Saved to {printable(draft.file.name)}. "
            return None if draft.file is None or draft.is_dirty else draft.file.absolute()
        return Path(self.saved(config))

    def _show_waiting(self, report: PreflightReport, output: str) -> None:
        """In place of the table: what to start on the other machines, and who has joined."""
        commands = [(f"Machine {other.node_rank}", other.command) for other in report.waits_for]
        count = len(commands)
        if report.needs_token:  # the same for all
            title = "Every other machine" if count > 1 else "The other machine"
            commands = [(title, with_token(commands[0][1], self._token))]
        if [line.content for line in self.lines] != [command for _, command in commands[:_MAX_LINES]]:
            self._show_commands(commands, _JOIN_THERE if report.needs_token else f"{self._saved}{_START_THERE}")
        others = "the other machine" if count == 1 else f"the {count} other machines"
        self.show_status(f"Waiting for {others}…" if commands else "Starting the other machines…", theme.MUTED)
        if not self.waiting.winfo_manager():
            self._joined.pack(fill="x", pady=(theme.px(12), 0))
            self.waiting.place(relwidth=1, relheight=1)
            self.waiting.lift()
        said = [*report.joining] or [line for line in output.splitlines() if line.startswith(WAITING)][-1:]
        self._joined.configure(text="\n".join(said[-_MAX_MESSAGES:]) if said else _NOBODY_YET)

    def _show_commands(self, commands: Sequence[tuple[str, str]], about: str) -> None:
        for child in self.waiting.winfo_children():
            if child is not self._joined:
                child.destroy()
        self._joined.pack_forget()
        if commands:
            text(self.waiting, about, colour=theme.MUTED, wrap=900).pack(anchor="w")
        self.lines = []
        for title, command in commands[:_MAX_LINES]:
            line = CopyText(self.waiting, title, command)
            line.pack(fill="x", pady=(theme.px(10), 0))
            self.lines.append(line)
        if commands[_MAX_LINES:]:
            numbers = ", ".join(title.split()[-1] for title, _ in commands[_MAX_LINES:])
            more = f"Machines {numbers}: the same with their numbers as node_rank."
            text(self.waiting, more, colour=theme.MUTED).pack(anchor="w", pady=(theme.px(10), 0))
        self._joined.pack(fill="x", pady=(theme.px(12), 0))

    def _show_advice(self) -> None:
        selected = self.table.selection()
        if self.report is not None and selected:
            cell = self.report.cells[int(selected[0])]
            said = (_EXPLAINED.get(cell.check), cell.value, cell.advice)
            self._advice.configure(text=_in_window("\n".join(filter(None, said))))

    def _see_selected(self) -> None:
        if selected := self.table.selection():
            self.table.update_idletasks()  # on a busy machine it still has its former height
            self.table.see(selected[0])

    def _fit_advice(self) -> None:
        """Make room for all lines of the advice, at the cost of the table: the buttons stay where they are."""
        height = max(theme.px(_ADVICE_HEIGHT), self._advice.winfo_reqheight())
        if height == int(self._below.cget("height")):
            return
        self._below.configure(height=height)
        rest = theme.px(_TABLE_HEIGHT + _ADVICE_HEIGHT) - height
        self._upper.configure(height=max(theme.px(_LEAST_TABLE_HEIGHT), rest))

    def _colour_rows(self) -> None:
        def recolour() -> None:
            for name, colour in (("red", theme.BAD), ("yellow", theme.WARN), ("grey", theme.FAINT)):
                self.table.tag_configure(name, foreground=theme.resolve(colour))

        theme.follow(self.table, "rows", recolour)


def _on(state: AppState) -> str:
    """Where, if Train does not start runs on this computer."""
    machine = state.place.machine
    if machine is None:
        return ""
    return f" on the login node of {machine.name}" if machine.is_cluster else f" on {machine.name} alone"


def _in_window(sentence: str) -> str:
    """With the window's words: what `--test all` is called here, and settings by their titles."""
    return with_titles(sentence.replace("--test all", "Thorough"))


def _counts_itself(config: TrainConfig) -> bool:
    """Whether the machines count their own processes when they join, as they do for Train."""
    given = config.processes_per_node is not None or config.world_size is not None
    return config.num_nodes > 1 and config.node_rank == 0 and not given
