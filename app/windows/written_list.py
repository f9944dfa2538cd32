"""The files that a run has written, each with the programs that open it."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from PIL import Image, ImageTk

from app.open_path import show_folder, show_page
from app.runs.written import Written
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, frame, text, wrap_within
from app.widgets.scroll import Scroll
from modules.run import RunFolder
from modules.run.format_progress import format_bytes


class WrittenList(tk.Frame):
    """Models of earlier steps have the loss before them, a sample, and a button that calls `generate` with the step."""

    def __init__(
        self,
        parent: tk.Misc,
        state: AppState,
        folder: RunFolder,
        say: Callable[[str], object],
        generate: Callable[[int | None], object],
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._state, self._folder, self._say, self._generate = state, folder, say, generate
        self.pictures: list[ImageTk.PhotoImage] = []  # which Tk does not hold itself
        self.scroll = Scroll(self, theme.CARD)
        self.scroll.pack(fill="both", expand=True)

    def show(
        self,
        rows: Sequence[Written],
        losses: Mapping[int, float | None],
        thumbnails: Mapping[Path, Image.Image | None],
        *,
        generates: bool,
    ) -> None:
        """Show these; `losses` are by step, `thumbnails` by the path of their row."""
        for row in rows:
            loss = None if row.step is None else losses.get(row.step)
            self._add(row, loss, thumbnails.get(row.path), generates=generates)

    def _add(self, row: Written, loss: float | None, thumbnail: Image.Image | None, *, generates: bool) -> None:
        line = frame(self.scroll.inside)
        line.pack(fill="x", pady=(0, theme.px(10)))
        if thumbnail is not None:
            picture = theme.paint(tk.Label(line, borderwidth=0), bg=theme.CARD)
            self.pictures.append(ImageTk.PhotoImage(thumbnail, master=line))
            picture.configure(image=self.pictures[-1])
            picture.pack(side="left", anchor="n", padx=(0, theme.px(12)))
        else:
            icon = "image" if row.path.name == "samples" else "backup" if "ackup" in row.title else "file"
            icons.label(line, icon, 20, theme.MUTED, theme.CARD).pack(side="left", anchor="n", padx=(0, theme.px(12)))
        Button(line, "Open", partial(self._open, row.path), bg=theme.CARD).pack(side="right", padx=(8, 4))
        facts = [format_bytes(row.size)]
        if row.step is not None and generates:
            Button(line, "Generate", partial(self._generate, row.step), bg=theme.CARD).pack(side="right", padx=(8, 0))
        if loss is not None:
            facts.insert(0, f"loss {loss:.4g}")
        first = frame(line)
        first.pack(fill="x")
        text(first, row.title, "strong").pack(side="left")
        text(first, ", ".join(facts), "small", colour=theme.MUTED).pack(side="left", padx=theme.px(10))
        name = row.path.relative_to(self._folder.path)
        opens = text(line, f"{name}   →   {row.opens}", "small", colour=theme.MUTED)
        opens.pack(anchor="w")
        wrap_within(opens, first, margin=0)

    def _open(self, path: Path) -> None:
        if path.suffix == ".html" and os.path.isfile(path):
            show_page(self._state, path, self._say)
        else:
            show_folder(self._state, path if os.path.isdir(path) else path.parent, self._say)
