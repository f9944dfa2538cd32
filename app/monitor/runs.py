"""The page of runs: all of them in a table, each to follow or to go on with, several to compare."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from app import look, texts
from app.controls import Button, card, frame, text
from app.monitor.compare import Comparison
from app.monitor.page import Page
from app.monitor.run_list import RunList, RunSummary
from app.run_status import duration
from app.table import table
from modules.config import TandemError, load_config
from modules.run import RunFolder

_LOOK_EVERY_S: Final = 2.0
_DASH: Final = "-"


class RunsPage(Page):
    """Looks into the folder every two seconds, in a thread."""

    def build(self) -> None:
        """Table above; what to do with the chosen runs, or their comparison, below."""
        self.runs: dict[str, RunSummary] = {}
        self._list = RunList()
        self._looked_at = 0.0
        self._is_looking = False
        self.comparison: Comparison | None = None
        upper = card(self)
        upper.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        columns = {
            "name": (texts.RUN_NAME, 250),
            "state": (texts.RUN_STATE, 190),
            "begun": (texts.RUN_BEGUN, 130),
            "steps": (texts.STEP, 130),
            "loss": (texts.LOSS, 90),
            "measured": (texts.CURVE_VALIDATION, 90),
            "length": (texts.RUN_LENGTH, 90),
        }
        holder = frame(upper)
        holder.pack(fill="both", expand=True, padx=look.px(4), pady=look.px(4))
        self.table = table(holder, columns)
        self.table.configure(selectmode="extended", height=6)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._selected())
        self.table.bind("<Double-Button-1>", lambda event: self._follow())
        self.table.bind("<Return>", lambda event: self._follow())
        look.follow(self.table, "tones", self._colour_rows)
        self.bar = frame(self, look.WINDOW)
        self.bar.pack(fill="x", padx=look.px(6), pady=(0, look.px(6)))
        self.follow_button = Button(
            self.bar, texts.RUN_FOLLOW, self._follow, icon="monitor", hint=texts.RUN_FOLLOW_HELP
        )
        self.resume_button = Button(self.bar, texts.RESUME, self._resume, icon="refresh")
        self.settings_button = Button(
            self.bar, texts.RUN_SETTINGS, self._open_settings, icon="presets", hint=texts.RUN_SETTINGS_HELP
        )
        for button in (self.follow_button, self.resume_button, self.settings_button):
            button.pack(side="left", padx=(0, look.px(8)))
        self.words = text(self.bar, texts.RUN_CHOOSE, "small", colour=look.MUTED, on=look.WINDOW)
        self.words.pack(side="left", padx=look.px(8))
        self._selected()

    def refresh(self) -> None:
        """Look into the folder now and then."""
        if self.comparison is not None and self.comparison.winfo_ismapped():
            self.comparison.refresh()
        if self._is_looking or time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return
        self._is_looking = True
        folder = self.runs_dir
        self.state.background.run(lambda: self._list.look(folder), self._show)

    @property
    def runs_dir(self) -> Path:
        """Where the runs are: beside the followed one, else where the settings say."""
        if self.run is not None:
            return self.run.folder.path.parent
        return Path(str(self.state.draft.get("runs_dir") or "runs")).resolve()

    @property
    def chosen(self) -> list[RunSummary]:
        """The chosen runs in the order of the table."""
        return [self.runs[name] for name in self.table.selection() if name in self.runs]

    def choose(self, names: list[str]) -> None:
        """Choose runs by name."""
        self.table.selection_set([name for name in names if self.table.exists(name)])

    def _show(self, found: list[RunSummary]) -> None:
        self._is_looking, self._looked_at = False, time.monotonic()
        if not self.winfo_exists():
            return
        self.runs = {summary.name: summary for summary in found}
        present = self.table.get_children()
        gone = [name for name in present if name not in self.runs]
        if gone:
            self.table.delete(*gone)
        for place, summary in enumerate(found):
            values = _row(summary)
            if not self.table.exists(summary.name):
                self.table.insert("", place, iid=summary.name, values=values, tags=(summary.status.tone,))
            elif tuple(map(str, self.table.item(summary.name, "values"))) != values:
                self.table.item(summary.name, values=values, tags=(summary.status.tone,))
        order = tuple(self.runs)
        if self.table.get_children() != order:
            for place, name in enumerate(order):
                self.table.move(name, "", place)
        self._say()

    def _colour_rows(self) -> None:
        for tone, colour in (("bad", look.BAD), ("busy", look.ACCENT_TEXT)):
            self.table.tag_configure(tone, foreground=look.now(colour))

    def _selected(self) -> None:
        chosen = self.chosen
        alone = chosen[0] if len(chosen) == 1 else None
        can_resume = alone is not None and alone.status.can_resume
        self.follow_button.configure(state="normal" if alone is not None else "disabled")
        self.settings_button.configure(state="normal" if alone is not None else "disabled")
        self.resume_button.configure(state="normal" if can_resume else "disabled")
        self._say()
        if len(chosen) < 2:
            if self.comparison is not None:
                self.comparison.pack_forget()
            return
        if self.comparison is None:
            self.comparison = Comparison(self, self.state)
        self.comparison.pack(fill="both", expand=True)
        self.comparison.show([summary.path for summary in chosen])

    def _say(self) -> None:
        chosen = self.chosen
        if not self.runs:
            words = texts.NO_RUNS.format(folder=self.runs_dir)
        elif len(chosen) == 1 and chosen[0].status.problem is not None:
            words = chosen[0].status.problem.text.split("\n")[0][:110]
        else:
            words = texts.RUN_CHOOSE if len(chosen) < 2 else texts.RUNS_CHOSEN.format(count=len(chosen))
        self.words.configure(text=words)

    def _follow(self) -> None:
        if len(self.chosen) == 1:
            self.state.actions.follow(self.chosen[0].path)

    def _resume(self) -> None:
        if len(self.chosen) == 1:
            self.state.actions.resume_in(RunFolder(self.chosen[0].path))

    def _open_settings(self) -> None:
        if len(self.chosen) != 1:
            return
        file = RunFolder(self.chosen[0].path).config_file
        try:
            self.state.draft.open_config(load_config(file))
        except (TandemError, OSError) as error:
            self.words.configure(text=str(error).split("\n")[0])


def _row(summary: RunSummary) -> tuple[str, ...]:
    begun = time.strftime("%d %b %H:%M", time.localtime(summary.begun)) if summary.begun else _DASH
    steps = _DASH
    if summary.step is not None:
        total = f" / {summary.total_steps:,}" if summary.total_steps else ""
        steps = f"{summary.step:,}{total}"
    return (
        summary.name,
        summary.status.words,
        begun,
        steps,
        _DASH if summary.loss is None else f"{summary.loss:.4g}",
        _DASH if summary.measured is None else f"{summary.measured:.4g}",
        duration(summary.length_s) if summary.length_s else _DASH,
    )
