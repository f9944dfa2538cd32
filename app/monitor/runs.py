"""The Runs page: a table of all runs to follow, resume or compare."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.monitor.compare import RunComparison
from app.monitor.page import Page
from app.monitor.run_list import RunList, RunSummary
from app.runs.status import duration
from app.widgets import theme
from app.widgets.buttons import Button, add_tooltip, card, frame, text
from app.widgets.ellipsis import fit
from app.widgets.table import table
from app.windows.backups import BackupsWindow
from modules.config import TandemError, load_config
from modules.run import RunFolder
from modules.run.html_report import write_report

_SCAN_S: Final = 2.0
_DASH: Final = "-"
_HINT: Final = "Select a run; select two or more to compare them."


class RunsPage(Page):
    """Scans the folder every two seconds, in a thread."""

    def build(self) -> None:
        """Table above; actions on the selected runs, or their comparison, below."""
        self.runs: dict[str, RunSummary] = {}
        self._list = RunList()
        self._browse: Callable[[str], object] = webbrowser.open
        self._scanned_at = 0.0
        self._is_scanning = False
        self.comparison: RunComparison | None = None
        upper = card(self)
        upper.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        columns = {
            "name": ("Run", 250),
            "state": ("State", 190),
            "started": ("Started", 130),
            "steps": ("Step", 130),
            "loss": ("Loss", 90),
            "validation_loss": ("Validation", 90),
            "length": ("Duration", 90),
        }
        holder = frame(upper)
        holder.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))
        self.table = table(holder, columns, ("steps", "loss", "validation_loss", "length"))
        self.table.configure(selectmode="extended", height=6)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._on_select())
        self.table.bind("<Double-Button-1>", lambda event: self._follow())
        self.table.bind("<Return>", lambda event: self._follow())
        theme.follow(self.table, "tones", self._colour_rows)
        self.bar = frame(self, theme.WINDOW)
        self.bar.pack(fill="x", padx=theme.px(6), pady=(0, theme.px(6)))
        self.follow_button = Button(
            self.bar, "Follow", self._follow, icon="monitor", tooltip="Show this run in the monitor and the run bar."
        )
        self.resume_button = Button(self.bar, "Resume", self._resume, icon="refresh")
        self.settings_button = Button(
            self.bar,
            "Open settings",
            self._open_settings,
            icon="presets",
            tooltip="Edit a copy of the settings this run was started with.",
        )
        self.backups_button = Button(
            self.bar,
            "Backups …",
            self._show_backups,
            icon="backup",
            tooltip="What this run can continue from: check it, go back, or free disk space.",
        )
        self.report_button = Button(
            self.bar,
            "Report",
            self._show_report,
            icon="file",
            tooltip="Curves, samples, warnings, devices and settings of this run as one page in the browser.",
        )
        buttons = (self.follow_button, self.resume_button, self.settings_button, self.backups_button)
        for button in (*buttons, self.report_button):
            button.pack(side="left", padx=(0, theme.px(8)))
        self.message = text(self.bar, _HINT, "small", colour=theme.MUTED, bg=theme.WINDOW)
        self.message.pack(side="left", fill="x", expand=True, padx=theme.px(8))
        self._message = ""
        self.message.bind("<Configure>", lambda event: self._fit_message())
        add_tooltip(self.message, lambda: self._message)
        self._on_select()

    def refresh(self) -> None:
        """Scan the folder if it is time."""
        if self.comparison is not None and self.comparison.winfo_ismapped():
            self.comparison.refresh()
        if self._is_scanning or time.monotonic() - self._scanned_at < _SCAN_S:
            return
        self._is_scanning = True
        folder = self.runs_dir
        self.state.background.run(lambda: self._list.scan(folder), self._show)

    @property
    def runs_dir(self) -> Path:
        """The folder of the followed run, or else that of the settings."""
        if self.run is not None:
            return self.run.folder.path.parent
        return Path(str(self.state.draft.get("runs_dir") or "runs")).resolve()

    @property
    def selected(self) -> list[RunSummary]:
        """The selected runs in table order."""
        return [self.runs[name] for name in self.table.selection() if name in self.runs]

    def select(self, names: list[str]) -> None:
        """Select runs by name."""
        self.table.selection_set([name for name in names if self.table.exists(name)])

    def _show(self, found: list[RunSummary]) -> None:
        self._is_scanning, self._scanned_at = False, time.monotonic()
        if not self.winfo_exists():
            return
        self.runs = {summary.name: summary for summary in found}
        shown = self.table.get_children()
        deleted = [name for name in shown if name not in self.runs]
        if deleted:
            self.table.delete(*deleted)
        for index, summary in enumerate(found):
            values = _row(summary)
            if not self.table.exists(summary.name):
                self.table.insert("", index, iid=summary.name, values=values, tags=(summary.status.tone,))
            elif tuple(map(str, self.table.item(summary.name, "values"))) != values:
                self.table.item(summary.name, values=values, tags=(summary.status.tone,))
        order = tuple(self.runs)
        if self.table.get_children() != order:
            for index, name in enumerate(order):
                self.table.move(name, "", index)
        self._show_message()

    def _colour_rows(self) -> None:
        for tone, colour in (("bad", theme.BAD), ("busy", theme.ACCENT_TEXT)):
            self.table.tag_configure(tone, foreground=theme.resolve(colour))

    def _on_select(self) -> None:
        selected = self.selected
        only = selected[0] if len(selected) == 1 else None
        can_resume = only is not None and only.status.can_resume
        self.follow_button.configure(state="normal" if only is not None else "disabled")
        self.settings_button.configure(state="normal" if only is not None else "disabled")
        self.resume_button.configure(state="normal" if can_resume else "disabled")
        self.backups_button.configure(state="normal" if only is not None else "disabled")
        self.report_button.configure(state="normal" if only is not None else "disabled")
        self._show_message()
        if len(selected) < 2:
            if self.comparison is not None:
                self.comparison.pack_forget()
            return
        if self.comparison is None:
            self.comparison = RunComparison(self, self.state)
        self.comparison.pack(fill="both", expand=True)
        self.comparison.show([summary.path for summary in selected])

    def _show_message(self) -> None:
        selected = self.selected
        if not self.runs:
            message = f"No runs in {self.runs_dir} yet."
        elif len(selected) == 1 and selected[0].status.problem is not None:
            message = selected[0].status.problem.text.split("\n")[0][:110]
        else:
            message = _HINT if len(selected) < 2 else f"Comparing {len(selected)} runs."
        self._say(message)

    def _say(self, message: str) -> None:
        self._message = message
        self._fit_message()

    def _fit_message(self) -> None:
        """As much of the message as there is room for beside the buttons; the tooltip has the rest."""
        room = self.message.winfo_width()
        shown = fit(self, self._message, theme.tk_font("small"), room) if room > 1 else self._message
        if self.message.cget("text") != shown:
            self.message.configure(text=shown)

    def _follow(self) -> None:
        if len(self.selected) == 1:
            self.state.actions.follow(self.selected[0].path)

    def _resume(self) -> None:
        if len(self.selected) == 1:
            self.state.actions.resume_in(RunFolder(self.selected[0].path))

    def _show_backups(self) -> None:
        if len(self.selected) == 1:
            BackupsWindow(self, self.state, RunFolder(self.selected[0].path)).show()

    def _show_report(self) -> None:
        """Write the report anew, which a run does only at its end, and open it in the browser."""
        if len(self.selected) != 1:
            return
        folder = RunFolder(self.selected[0].path.resolve())

        def failed(reason: str) -> None:
            if folder.report_file.is_file():  # of a run on a disk that may only be read
                self._browse(folder.report_file.as_uri())
            else:
                self._say(f"The report cannot be written: {reason}")

        def done(file: Path) -> None:
            self._browse(file.as_uri())

        self.state.background.run(lambda: write_report(folder), done, failed)

    def _open_settings(self) -> None:
        if len(self.selected) != 1:
            return
        file = RunFolder(self.selected[0].path).config_file
        try:
            self.state.draft.open_config(load_config(file))
        except (TandemError, OSError) as error:
            self._say(str(error).split("\n")[0])


def _row(summary: RunSummary) -> tuple[str, ...]:
    started = time.strftime("%d %b %H:%M", time.localtime(summary.started)) if summary.started else _DASH
    steps = _DASH
    if summary.step is not None:
        total = f" / {summary.total_steps:,}" if summary.total_steps else ""
        steps = f"{summary.step:,}{total}"
    return (
        summary.name,
        summary.status.title,
        started,
        steps,
        _DASH if summary.loss is None else f"{summary.loss:.4g}",
        _DASH if summary.validation_loss is None else f"{summary.validation_loss:.4g}",
        duration(summary.duration_s) if summary.duration_s else _DASH,
    )
