"""What a run has made: its samples over time and side by side, and what it has written; and what to do with it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from PIL import Image

from app.generate.settings import GENERATES_NOTHING
from app.monitor.run_list import RunSummary, read_view, summarize_run
from app.monitor.run_samples import RunSamples, read_samples
from app.monitor.sample_compare import SampleCompare
from app.monitor.tile_grid import TileGrid
from app.monitor.tile_lines import Block
from app.monitor.tiles import read_image
from app.monitor.viewer import SampleViewer
from app.open_path import show_folder
from app.runs.liveness import read_liveness
from app.runs.written import Written, what_was_written
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Menu, Segments, add_tooltip, frame, text
from app.windows.comfyui import ComfyMenu
from app.windows.dialog import Dialog
from app.windows.written_list import WrittenList
from modules.config import TandemError, load_config
from modules.facts import PROGRAM
from modules.files import FileFault, read_json
from modules.run import RunFolder
from modules.run.folder.run_folder import newest_first
from modules.run.view.event_records import SampleFile

_SIZE: Final = (960, 560)  # of the page, in unscaled pixels, as far as the screen has room
_AROUND: Final = (110, 212)  # what the dialog needs beside and above it
_SIDE: Final = 56  # of a sample
_MOST_RUNS: Final = 30  # that can be compared with
_ALONE: Final = "With: this run"
_NOTHING: Final = "Nothing yet: the run has been stopped before its first backup, or its folder is gone."
SAMPLES, COMPARE, FILES = "Samples", "Compare", "Files"


def can_generate(folder: RunFolder) -> bool:
    """Whether the run's model generates images, as far as its config says."""
    try:
        config = read_json(folder.config_file)
    except (OSError, FileFault):
        return False
    family = config.get("family") if isinstance(config, dict) else None
    return isinstance(family, str) and family not in (*GENERATES_NOTHING, PROGRAM)


@dataclass(frozen=True)
class _Result:
    """What the window shows: of models of earlier steps with the loss before them, and a sample."""

    rows: list[Written]
    generates: bool
    losses: Mapping[int, float | None]  # by step
    thumbnails: Mapping[Path, Image.Image | None]  # by the path of their row
    samples: RunSamples
    summary: RunSummary | None
    others: list[str]  # runs beside this one that have samples


def _read(folder: RunFolder, side: int) -> _Result:
    """Takes a second per 200,000 steps."""
    rows, view = what_was_written(folder), read_view(folder)
    thumbnails = {row.path: read_image(row.sample, side) for row in rows if row.sample is not None}
    beside = newest_first(
        folder.path.parent, lambda run: run.path.stat().st_mtime if run.samples_dir.is_dir() else None
    )
    summary = summarize_run(folder, read_liveness(folder)) if folder.config_file.is_file() else None
    return _Result(
        rows,
        can_generate(folder),
        view.saved_models,
        thumbnails,
        read_samples(folder, view),
        summary,
        [run.name for run in beside if run.name != folder.name][:_MOST_RUNS],
    )


class ResultWindow:
    """Reads the folder in a thread; `rows` are the files once they are shown."""

    def __init__(self, owner: tk.Misc, state: AppState, folder: RunFolder) -> None:
        self._owner, self._state, self._folder = owner, state, folder
        self.dialog = Dialog(owner, f"Result of {folder.name}", str(folder.path), modal=False)
        self.rows: list[Written] = []
        self._result: _Result | None = None
        self._with: RunSamples | None = None  # another run, to compare with
        body, window = self.dialog.body, self.dialog.window
        head = frame(body)
        head.pack(fill="x", pady=(0, theme.px(8)))
        self.tabs = Segments(head, [SAMPLES, COMPARE, FILES], self.turn_to)
        self.said = text(head, "Reading…", colour=theme.MUTED)
        self.said.pack(side="right")
        screen = window.winfo_screenwidth(), window.winfo_screenheight()
        width, height = (
            min(theme.px(side), room - theme.px(around))
            for side, room, around in zip(_SIZE, screen, _AROUND, strict=True)
        )
        page = frame(body)
        page.configure(width=width, height=max(height, theme.px(60)))
        page.pack_propagate(False)
        page.pack(fill="both", expand=True)
        self.grid = TileGrid(page, self._view_sample)
        self.grid.bind("<Destroy>", lambda event: self.grid.close() if event.widget is self.grid else None)
        self.compare = SampleCompare(page, state)
        self.other = Menu(self.compare.bar, [_ALONE], self._choose_other, width=100)
        add_tooltip(self.other, "Another run of the same folder, to compare with.")
        self.other.show(_ALONE)
        self.compare.add(self.other, 3)
        self.files = WrittenList(page, state, folder, self._say, self._generate)
        self._pages: dict[str, tk.Frame] = {SAMPLES: self.grid, COMPARE: self.compare, FILES: self.files}
        self.dialog.button("Open folder", lambda: show_folder(state, folder.path, self._say))
        self.comfyui = ComfyMenu(self.dialog, state, folder, self._say)
        self.resume = self.dialog.button("Continue training", self._continue)
        self.dialog.button("Close", self.dialog.close)
        self.generate = self.dialog.button("Generate with it", self._generate, "accent")
        for button in (self.comfyui.button, self.resume, self.generate):
            button.configure(state="disabled")

    def show(self) -> tk.Toplevel:
        """Open the window."""
        window = self.dialog.show()
        side = theme.px(_SIDE)
        self._state.background.run(lambda: _read(self._folder, side), self._show, self._say)
        return window

    def turn_to(self, page: str) -> None:
        """Show one of the pages."""
        for other in self._pages.values():
            other.pack_forget()
        self._pages[page].pack(fill="both", expand=True)
        self.tabs.set(page)
        if page == SAMPLES:
            self._say(self._about_best())
        elif page == COMPARE:
            self._say("Drag the line, or use the arrow keys.")
        else:
            self._say("" if self.rows else _NOTHING)

    def _show(self, found: _Result) -> None:
        if not self.dialog.window.winfo_exists():
            return
        self._result, self.rows = found, found.rows
        self.files.show(found.rows, found.losses, found.thumbnails, generates=found.generates)
        self.comfyui.read()
        if found.generates and any(row.is_model for row in found.rows):
            self.generate.configure(state="normal")
        summary = found.summary
        if summary is not None and not summary.status.is_alive and not summary.status.never_started:
            self.resume.configure(state="normal")
        if not found.samples.index.steps:
            self.turn_to(FILES)
            return
        self.tabs.pack(side="left")
        self._show_samples(found.samples)
        self.other.set_choices([_ALONE, *found.others])
        self.compare.show([found.samples])
        self.turn_to(SAMPLES)

    def _show_samples(self, samples: RunSamples) -> None:
        """A row for each step, the newest first; the prompts are the columns."""
        index, best = samples.index, samples.best_step
        rows = [[each for each in index.at_step(step) if not each.is_custom] for step in reversed(index.steps)]
        columns = max(map(len, rows), default=0)
        items = [
            (each, f"{each.step:,}{' (best)' if each.step == best else ''} · {each.prompt}")
            for row in rows
            for each in row
        ]
        self.grid.best = {each.file for row in rows for each in row if each.step == best}
        self.grid.show(items, blocks=[Block(len(row), columns, is_apart=True) for row in rows])

    def _about_best(self) -> str:
        best = None if self._result is None else self._result.samples.best
        return "" if best is None else f"Best validation: step {best.step:,}, {best.metric} {best.value:.4g} (green)."

    def _view_sample(self, sample: SampleFile) -> None:
        if self._result is not None:
            SampleViewer(self.dialog.window, self._result.samples.index, sample)

    def _choose_other(self, name: str) -> None:
        if self._result is None:
            return
        own = self._result.samples
        if name == _ALONE:
            self.compare.show([own])
            return
        folder = RunFolder(self._folder.path.parent / name)
        shown = partial(self._compare_with, name)
        self._state.background.run(lambda: read_samples(folder), shown, self._say)

    def _compare_with(self, name: str, other: RunSamples) -> None:
        if self._result is not None and self.compare.winfo_exists() and self.other.value() == name:
            self.compare.show([self._result.samples, other] if other.index.steps else [self._result.samples])
            if not other.index.steps:
                self._say(f"{name} has no samples.")

    def _say(self, sentence: str) -> None:
        if self.said.winfo_exists():
            self.said.configure(text=sentence)

    def _generate(self, step: int | None = None) -> None:
        self.dialog.close()
        self._state.views.generate(self._folder, step=step)

    def _continue(self) -> None:
        """Resume the run; of a complete one open the settings, where it is to be longer."""
        summary = None if self._result is None else self._result.summary
        if summary is None:
            return
        if not summary.status.is_complete:
            self.dialog.close()
            self._state.actions.resume_in(self._folder)
            return
        try:
            config = load_config(self._folder.config_file)
        except (TandemError, OSError) as error:
            self._say(str(error).split("\n")[0])
            return
        self.dialog.close()
        self._state.files.train_further(config, self._folder.path)
