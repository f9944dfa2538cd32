"""What a run has written: each file with the programs that open it, and the way to generate with a model."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.generate.settings import GENERATES_NOTHING
from app.monitor.run_list import read_view
from app.monitor.tiles import read_image
from app.open_path import show_folder, show_page
from app.runs.written import Written, format_size, what_was_written
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, frame, text
from app.widgets.scroll import Scroll
from app.windows.dialog import Dialog
from modules.facts import PROGRAM
from modules.files import FileFault, read_json
from modules.run import RunFolder

_WIDTH: Final = 640
_HIGHEST: Final = 440
_SIDE: Final = 56  # of a sample, in unscaled pixels
_NOTHING: Final = "Nothing yet: the run has been stopped before its first backup, or its folder is gone."


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
    samples: Mapping[Path, Image.Image | None]  # by the path of their row


def _read(folder: RunFolder, side: int) -> _Result:
    """Takes a second per 200,000 steps of a run with models of earlier steps."""
    rows = what_was_written(folder)
    losses = read_view(folder).saved_models if any(row.step is not None for row in rows) else {}
    samples = {row.path: read_image(row.sample, side) for row in rows if row.sample is not None}
    return _Result(rows, can_generate(folder), losses, samples)


class ResultWindow:
    """Reads the folder in a thread; `rows` are the entries once they are shown."""

    def __init__(self, owner: tk.Misc, state: AppState, folder: RunFolder) -> None:
        self._owner, self._state, self._folder = owner, state, folder
        self.dialog = Dialog(owner, f"Result of {folder.name}", str(folder.path), modal=False)
        self.rows: list[Written] = []
        self._pictures: list[ImageTk.PhotoImage] = []  # which Tk does not hold itself
        self._scroll = Scroll(self.dialog.body, theme.CARD)
        self._scroll.canvas.configure(width=theme.px(_WIDTH), height=theme.px(60))
        self._scroll.pack(fill="both", expand=True)
        self._status = text(self.dialog.body, "Reading…", colour=theme.MUTED, wrap=_WIDTH)
        self._status.pack(anchor="w", pady=(theme.px(8), 0))
        self.dialog.button("Open folder", partial(self._open, folder.path))
        self.dialog.button("Close", self.dialog.close)
        self.generate = self.dialog.button("Generate with it", self._generate, "accent")
        self.generate.configure(state="disabled")

    def show(self) -> tk.Toplevel:
        """Open the window."""
        window = self.dialog.show()
        side = theme.px(_SIDE)
        self._state.background.run(lambda: _read(self._folder, side), self._show)
        return window

    def _show(self, found: _Result) -> None:
        self.rows = rows = found.rows
        self._status.configure(text="" if rows else _NOTHING)
        if rows:
            self._status.pack_forget()
        for row in rows:
            self._add(row, found)
        self._scroll.inside.update_idletasks()
        height = min(self._scroll.inside.winfo_reqheight(), theme.px(_HIGHEST))
        self._scroll.canvas.configure(height=max(height, theme.px(60)))
        if found.generates and any(row.is_model for row in rows):
            self.generate.configure(state="normal")

    def _add(self, row: Written, found: _Result) -> None:
        line = frame(self._scroll.inside)
        line.pack(fill="x", pady=(0, theme.px(10)))
        if (sample := found.samples.get(row.path)) is not None:
            picture = theme.paint(tk.Label(line, borderwidth=0), bg=theme.CARD)
            self._pictures.append(ImageTk.PhotoImage(sample, master=line))
            picture.configure(image=self._pictures[-1])
            picture.pack(side="left", anchor="n", padx=(0, theme.px(12)))
        else:
            icon = "image" if row.path.name == "samples" else "backup" if "ackup" in row.title else "file"
            icons.label(line, icon, 20, theme.MUTED, theme.CARD).pack(side="left", anchor="n", padx=(0, theme.px(12)))
        Button(line, "Open", partial(self._open, row.path), bg=theme.CARD).pack(side="right", padx=(8, 4))
        facts = [format_size(row.size)]
        if row.step is not None:
            if found.generates:
                generate = Button(line, "Generate", partial(self._generate, row.step), bg=theme.CARD)
                generate.pack(side="right", padx=(8, 0))
            if (loss := found.losses.get(row.step)) is not None:
                facts.insert(0, f"loss {loss:.4g}")
        first = frame(line)
        first.pack(fill="x")
        text(first, row.title, "strong").pack(side="left")
        text(first, ", ".join(facts), "small", colour=theme.MUTED).pack(side="left", padx=theme.px(10))
        name = row.path.relative_to(self._folder.path)
        width = _WIDTH - (130 if row.step is None else 260)  # beside the buttons, and a sample
        text(line, f"{name}   →   {row.opens}", "small", colour=theme.MUTED, wrap=width).pack(anchor="w")

    def _open(self, path: Path) -> None:
        if path.suffix == ".html" and os.path.isfile(path):
            show_page(self._state, path, self._say)
        else:
            show_folder(self._state, path if os.path.isdir(path) else path.parent, self._say)

    def _say(self, sentence: str) -> None:
        self._status.configure(text=sentence)
        self._status.pack(anchor="w", pady=(theme.px(8), 0))

    def _generate(self, step: int | None = None) -> None:
        self.dialog.close()
        self._state.views.generate(self._folder, step=step)
