"""The table of the Runs page: one row a run, found by words."""

from __future__ import annotations

import time
import tkinter as tk
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from app.monitor.run_list import RunSummary
from app.widgets import theme
from app.widgets.table import table
from modules.run.format_duration import format_duration

_DASH: Final = "-"
_COLUMNS: Final[Mapping[str, tuple[str, int]]] = {
    "name": ("Run", 230),
    "state": ("State", 150),
    "started": ("Started", 104),
    "steps": ("Step", 108),
    "loss": ("Loss", 64),
    "validation_loss": ("Validation", 84),
    "length": ("Duration", 76),
    "notes": ("Notes", 170),
}


class RunTable:
    """`runs` has all runs by their key: the name, or the path of a second one of the same name."""

    def __init__(self, holder: tk.Misc, searched: str = "") -> None:
        self.runs: dict[str, RunSummary] = {}
        self._words = _words(searched)
        self._places: Mapping[Path, str] = {}
        self.tree = table(holder, _COLUMNS, ("steps", "loss", "validation_loss", "length"), names=("name",))
        self.tree.configure(selectmode="extended", height=6)
        theme.follow(self.tree, "tones", self._colour_rows)

    @property
    def selected(self) -> list[RunSummary]:
        """The selected runs in table order."""
        return [self.runs[key] for key in self.tree.selection() if key in self.runs]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.tree.get_children())

    def names(self, runs: Sequence[RunSummary]) -> dict[Path, str]:
        """Names for these runs by their folders: where two are equal, as the table shows them."""
        counts = Counter(run.name for run in runs)
        return {run.path: run.name if counts[run.name] == 1 else self._title(run) for run in runs}

    def select(self, keys: Sequence[str]) -> None:
        """Select rows."""
        self.tree.selection_set([key for key in keys if self.tree.exists(key)])

    def search(self, text: str) -> None:
        """Show only runs whose name, folder, state, tags or note hold all these words."""
        self._words = _words(text)
        self._fill()

    def show(self, found: Sequence[RunSummary]) -> None:
        """Show these runs; the selection and the scroll position stay."""
        self.runs = {}
        for summary in found:
            self.runs[str(summary.path) if summary.name in self.runs else summary.name] = summary
        self._fill()

    def _title(self, run: RunSummary) -> str:
        """A run's name, with that of its folder if the runs of several are listed."""
        place = self._places.get(run.path.parent, "")
        return f"{run.name}  ({place})" if place else run.name

    def _fill(self) -> None:
        shown = {key: summary for key, summary in self.runs.items() if _matches(summary, self._words)}
        gone = [key for key in self.tree.get_children() if key not in shown]
        if gone:
            self.tree.delete(*gone)
        none = "No run matches these words." if self.runs else "There are no runs yet."
        self.tree.say("" if shown else none)
        self._places = _short_names({summary.path.parent for summary in self.runs.values()})
        for index, (key, summary) in enumerate(shown.items()):
            values = (self._title(summary), *_figures(summary))
            if not self.tree.exists(key):
                self.tree.insert("", index, iid=key, values=values, tags=(summary.status.tone,))
            elif tuple(map(str, self.tree.item(key, "values"))) != values:
                self.tree.item(key, values=values, tags=(summary.status.tone,))
        order = tuple(shown)
        if self.tree.get_children() != order:
            for index, key in enumerate(order):
                self.tree.move(key, "", index)

    def _colour_rows(self) -> None:
        for tone, colour in (("bad", theme.BAD), ("busy", theme.ACCENT_TEXT)):
            self.tree.tag_configure(tone, foreground=theme.resolve(colour))


def _words(text: str) -> list[str]:
    return text.lower().split()


def _matches(summary: RunSummary, words: Sequence[str]) -> bool:
    tags = " ".join(f"#{tag}" for tag in summary.notes.tags)
    text = f"{summary.path} {summary.status.title} {tags} {summary.notes.note}".lower()
    return all(word in text for word in words)


def _short_names(folders: Collection[Path]) -> dict[Path, str]:
    """Empty names for one folder; else their own ones, with that of the folder above where they would be equal."""
    if len(folders) < 2:
        return dict.fromkeys(folders, "")
    counts = Counter(folder.name for folder in folders)
    return {each: each.name if counts[each.name] == 1 else f"{each.parent.name}/{each.name}" for each in folders}


def _figures(summary: RunSummary) -> tuple[str, ...]:
    """What follows the name in its row."""
    started = time.strftime("%d %b %H:%M", time.localtime(summary.started)) if summary.started else _DASH
    steps = _DASH
    if summary.step is not None:
        total = f" of {summary.total_steps:,}" if summary.total_steps else ""
        steps = f"{summary.step:,}{total}"
    return (
        summary.status.title,
        started,
        steps,
        _DASH if summary.loss is None else f"{summary.loss:.4g}",
        _DASH if summary.validation_loss is None else f"{summary.validation_loss:.4g}",
        format_duration(summary.duration_s) if summary.duration_s else _DASH,
        summary.notes.line,
    )
