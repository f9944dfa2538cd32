"""The right side of the Generate page: the images of a folder side by side, the newest first."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from app.generate.settings import GenerateSettings
from app.monitor.tile_grid import TileGrid
from app.monitor.tiles import read_settings
from app.monitor.viewer import SampleViewer
from app.widgets import theme
from app.widgets.buttons import Button, card
from modules.files import printable
from modules.run.view.event_records import SampleFile

MAX_IMAGES: Final = 300  # shown
NAME: Final = re.compile(r"sample-\d{1,9}\.png")  # as scripts/sample.py writes them
_EMPTY: Final = (
    "No images yet.\nChoose a base model or a run, write a prompt and press Generate.\n"
    "The images appear here side by side."
)
_REUSED: Final = ("prompt", "negative_prompt", "width", "height", "steps", "guidance_scale", "seed")
_TITLES: Final = {
    "prompt": "Prompt",
    "negative_prompt": "Negative prompt",
    "model": "Model",
    "lora": "LoRA",
    "size": "Size",
    "steps": "Sampling steps",
    "guidance_scale": "Guidance scale",
    "seed": "Seed",
    "file": "File",
}


def read_image(file: Path, number: int) -> tuple[SampleFile, str]:
    """An image and its caption, from the settings in the PNG."""
    settings = read_settings(file)
    prompt, seed = printable(settings.get("prompt", ""), 300), settings.get("seed")
    caption = f"seed {seed}   {prompt}" if type(seed) is int else prompt
    strength = printable(settings.get("lora", ""), 300).rpartition(":")[2]
    caption = f"strength {strength}   {caption}" if strength else caption
    return SampleFile(str(file), prompt, 0, number), caption


def read_folder(folder: Path) -> list[tuple[SampleFile, str]]:
    """The newest images that were generated into the folder, with their captions; takes milliseconds for each."""
    try:
        files = [file for file in folder.iterdir() if NAME.fullmatch(file.name)]
        files.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []
    return [read_image(file, file.stat().st_mtime_ns) for file in files[:MAX_IMAGES] if file.is_file()]


def reusable(settings: Mapping[str, object]) -> dict[str, object]:
    """Those of an image's settings that the page can take over; wrong ones are left out."""
    found: dict[str, object] = {}
    for name in _REUSED:
        if name in settings:
            try:
                value = getattr(GenerateSettings.model_validate({name: settings[name]}), name)
            except ValueError:
                continue
            found[name] = value
    return found


class Viewer(SampleViewer):
    """One image at full size; its settings can be taken over."""

    titles = _TITLES
    keys_help = "Left and right: other images.  Esc: close."

    def __init__(
        self, parent: tk.Misc, results: Results, sample: SampleFile, use: Callable[[dict[str, object]], object]
    ):
        super().__init__(parent, results, sample)
        self.use = Button(self.buttons, "Use these settings", lambda: self._use(use), icon="refresh", bg=theme.CARD)
        self.use.pack(anchor="w", pady=(8, 0))

    def heading(self, sample: SampleFile) -> str:
        """The prompt."""
        return sample.prompt

    def _use(self, use: Callable[[dict[str, object]], object]) -> None:
        use(reusable(read_settings(Path(self.sample.file))))
        self.destroy()


class Results(tk.Frame):
    """`use` gets the settings of an image that are to be taken over."""

    def __init__(self, parent: tk.Misc, use: Callable[[dict[str, object]], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._use = use
        self._viewer: Viewer | None = None
        self.items: list[tuple[SampleFile, str]] = []
        self._row: list[Path] = []  # images that stay in the order in which they were generated, before all others
        self._row_length = 0
        holder = card(self)
        holder.pack(fill="both", expand=True)
        self.grid_view = TileGrid(holder, self._open, _EMPTY)
        self.grid_view.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))

    def destroy(self) -> None:
        """Stop the image thread."""
        self.grid_view.close()
        super().destroy()

    def begin(self, row_length: int) -> None:
        """Images are about to be generated: so many belong side by side, in their order (0: any, the newest first)."""
        self._row, self._row_length = [], row_length
        self.grid_view.set_row_length(row_length)

    def show(self, items: list[tuple[SampleFile, str]]) -> None:
        """Show these images."""
        items = self._in_rows(items)
        if items != self.items:
            self.items = items
            self.grid_view.show(items)

    def add(self, file: Path) -> None:
        """Show an image that has just been generated, before all others."""
        known = {Path(sample.file) for sample, _ in self.items}
        if file not in known:
            if self._row_length:
                self._row.append(file)
            self.items = self._in_rows([read_image(file, len(known) + 1), *self.items][:MAX_IMAGES])
            self.grid_view.show(self.items)

    def _in_rows(self, items: list[tuple[SampleFile, str]]) -> list[tuple[SampleFile, str]]:
        by_file = {Path(item[0].file): item for item in items}
        first = [by_file.pop(file) for file in self._row if file in by_file]
        return [*first, *by_file.values()]

    def of_prompt(self, prompt: str) -> list[SampleFile]:
        """All images, for the viewer."""
        return [sample for sample, _ in self.items]

    def at_step(self, step: int) -> list[SampleFile]:
        """All images, for the viewer."""
        return self.of_prompt("")

    def _open(self, sample: SampleFile) -> None:
        if self._viewer is not None and self._viewer.winfo_exists():
            self._viewer.destroy()
        self._viewer = Viewer(self, self, sample, self._use)
