"""The newest runs, shown while no run is followed: last sample, state and loss; a click follows one."""

from __future__ import annotations

import math
import os
import time
import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.monitor.run_list import RunList, RunSummary
from app.monitor.tiles import read_image
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text
from app.widgets.clickable import ClickableRow
from modules.files import FileFault, open_regular, printable
from modules.run import RunFolder
from modules.run.folder.event_reader import parse_events
from modules.run.view.series import MAX_VALUE

_COUNT: Final = 4
_SIDE: Final = 56  # of the sample, in unscaled pixels
_CURVE: Final = (170, 44)
_POINTS: Final = 48
_CHUNK_BYTES: Final = 8192


@dataclass(frozen=True)
class RecentRun:
    """What a row shows; no sample if there is none that can be read."""

    summary: RunSummary
    losses: tuple[float, ...]
    sample: Image.Image | None


class RecentRuns(tk.Frame):
    """`refresh` reads the newest runs in a thread; `rows` are shown afterwards."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state = state
        self._shown: list[RecentRun] = []
        self.rows: list[_Row] = []

    def refresh(self) -> None:
        """Show the newest runs of the folder in the settings."""
        runs_dir = self._state.runs_dir
        side = theme.px(_SIDE)
        self._state.background.run(lambda: read_recent(runs_dir, side), self._show)

    def _show(self, found: list[RecentRun]) -> None:
        if found == self._shown:
            return
        for child in self.winfo_children():
            child.destroy()
        self._shown, self.rows = found, []
        for run in found:
            block = card(self)
            block.pack(fill="x", pady=(8, 0))
            row = _Row(block, run, partial(self._state.actions.follow, run.summary.path))
            row.pack(fill="x", padx=6, pady=6)
            self.rows.append(row)


class _Row(ClickableRow):
    """One run; a click anywhere follows it."""

    def __init__(self, parent: tk.Misc, run: RecentRun, follow: partial[None]) -> None:
        super().__init__(parent)
        self.name = run.summary.name
        self.sample = None if run.sample is None else ImageTk.PhotoImage(run.sample, master=self)
        place = frame(self)
        place.configure(width=theme.px(_SIDE), height=theme.px(_SIDE))
        place.pack_propagate(False)
        place.pack(side="left")
        if self.sample is not None:
            tk.Label(place, image=self.sample, borderwidth=0).pack(expand=True)
        labels = frame(self)
        labels.configure(width=theme.px(350), height=theme.px(_SIDE))
        labels.pack_propagate(False)
        labels.pack(side="left", fill="x", expand=True, padx=theme.px(14))
        text(labels, printable(self.name, mask=False), "strong").pack(anchor="w", pady=(theme.px(8), theme.px(2)))
        text(labels, _about(run.summary), "small", colour=theme.MUTED).pack(anchor="w")
        self.curve = tk.Canvas(
            self, width=theme.px(_CURVE[0]), height=theme.px(_CURVE[1]), borderwidth=0, highlightthickness=0
        )
        theme.paint(self.curve, bg=theme.CARD)
        self.curve.pack(side="left")
        theme.follow(self.curve, "curve", lambda: _draw(self.curve, run.losses))
        Button(self, "Show", follow, bg=theme.CARD).pack(side="left", padx=(14, 0))
        self.on_click(follow)


def read_recent(runs_dir: Path, side: int) -> list[RecentRun]:
    """The newest runs in a folder, each with its sample within a square of `side` pixels. Call it off the Tk thread."""
    try:
        runs_dir = runs_dir.absolute()
    except OSError:  # the working folder has vanished
        return []
    found = []
    for summary in RunList().scan(runs_dir, _COUNT):
        folder = RunFolder(summary.path)
        sample = _last_sample(folder)
        found.append(
            RecentRun(summary, loss_outline(folder.events_file), None if sample is None else read_image(sample, side))
        )
    return found


def loss_outline(file: Path) -> tuple[float, ...]:
    """At most 48 losses, spread over the run, each the mean of some steps; of a long event file only parts are read."""
    try:
        with open_regular(file) as events:
            size = events.seek(0, os.SEEK_END)
            if size <= _POINTS * _CHUNK_BYTES:
                events.seek(0)
                losses = _losses(events.read(size))
                width = max(1, math.ceil(len(losses) / _POINTS))
                groups = [losses[first : first + width] for first in range(0, len(losses), width)]
            else:
                groups = []
                for number in range(_POINTS):
                    events.seek(number * (size - _CHUNK_BYTES) // (_POINTS - 1))
                    chunk = events.read(_CHUNK_BYTES)
                    groups.append(_losses(chunk[chunk.find(b"\n") + 1 : chunk.rfind(b"\n") + 1]))
    except (OSError, FileFault):
        return ()
    return tuple(sum(group) / len(group) for group in groups if group)


def _losses(chunk: bytes) -> list[float]:
    found = [event.get("loss") for event in parse_events(chunk) if event.get("type") == "step"]
    return [loss for loss in found if isinstance(loss, float) and abs(loss) < MAX_VALUE]


def _last_sample(folder: RunFolder) -> Path | None:
    """The newest sample image by its name, which begins with the step."""
    try:
        with os.scandir(folder.samples_dir) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("step-") and entry.name.endswith(".png")]
    except OSError:
        return None
    return folder.samples_dir / max(names) if names else None


def _about(summary: RunSummary) -> str:
    parts = [summary.status.title]
    if summary.step is not None:
        parts.append(f"{summary.step:,} steps")
    if summary.loss is not None:
        parts.append(f"loss {summary.loss:.4g}")
    if summary.started:
        parts.append(time.strftime("%d %b %H:%M", time.localtime(summary.started)))
    return "  ·  ".join(parts)


def _draw(canvas: tk.Canvas, losses: Sequence[float]) -> None:
    """The losses as a line as wide as the canvas."""
    canvas.delete("all")
    if len(losses) < 2:
        return
    width, height, edge = theme.px(_CURVE[0]), theme.px(_CURVE[1]), theme.px(4)
    least, span = min(losses), max(losses) - min(losses) or 1.0
    step = (width - 2 * edge) / (len(losses) - 1)
    points = [
        (edge + step * number, height - edge - (loss - least) / span * (height - 2 * edge))
        for number, loss in enumerate(losses)
    ]
    canvas.create_line(points, fill=theme.resolve(theme.ACCENT_TEXT), width=theme.px(2), joinstyle="round")
