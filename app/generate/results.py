"""The right side of the Generate page: the images of a folder side by side, the newest batch first."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from app.generate.settings import GenerateSettings
from app.monitor.tile_grid import TileGrid
from app.monitor.tile_lines import Block
from app.monitor.tiles import read_settings
from app.monitor.viewer import SampleViewer
from app.widgets import theme
from app.widgets.buttons import Button, add_tooltip, card
from modules.config.choices import as_drawn
from modules.files import printable
from modules.run.view.event_records import SampleFile

Use = Callable[[dict[str, object]], object]
TrainOn = Callable[[Path], object]

MAX_IMAGES: Final = 300  # shown
NAME: Final = re.compile(r"sample-\d{1,9}\.png")  # as scripts/sample.py writes them
_EMPTY: Final = (
    "No images yet.\nChoose a base model or a run, write a prompt if it needs one, and press Generate.\n"
    "The images appear here side by side."
)
_USE_AS_DATA: Final = "Copy it, with the prompt as its caption, into the folder “chosen” beside it, which is a concept"
_REUSED: Final = ("prompt", "negative_prompt", "width", "height", "frames", "steps", "guidance_scale", "seed")
_TITLES: Final = {
    "prompt": "Prompt",
    "written_prompt": "Prompt as written",
    "negative_prompt": "Negative prompt",
    "reference": "Reference image",
    "model": "Model",
    "lora": "LoRA",
    "size": "Size",
    "frames": "Frames",
    "steps": "Sampling steps",
    "guidance_scale": "Guidance scale",
    "seed": "Seed",
    "file": "File",
}


@dataclass(frozen=True)
class GeneratedImage:
    """An image, its caption, and the batch it was generated in: the number of its first image, and how long a row is.

    `row_length` 0: any number side by side. `batch` None: not known, as of images before 0.2.
    """

    sample: SampleFile
    caption: str
    batch: int | None = None
    row_length: int = 0

    @property
    def number(self) -> int:
        """The number in the file's name."""
        return int(re.sub(r"\D", "", Path(self.sample.file).name) or 0)

    @property
    def group(self) -> tuple[str, int]:
        """What is shown together: the images of a batch."""
        return ("", self.batch) if self.batch is not None else (self.sample.file, 0)

    @property
    def row(self) -> int:
        """Which row of its batch it stands in, also if some are missing."""
        return (self.number - (self.batch or 0)) // self.row_length if self.row_length else 0


def read_image(file: Path) -> GeneratedImage:
    """An image with what its PNG says of it."""
    settings = read_settings(file)
    prompt, seed = printable(settings.get("prompt", ""), 300), settings.get("seed")
    strength = printable(settings.get("lora", ""), 300).rpartition(":")[2]
    numbers = [f"strength {strength}"] * bool(strength) + [f"seed {seed}"] * (type(seed) is int)
    caption = "\n".join(filter(None, (" · ".join(numbers), prompt)))
    try:
        changed_ns = file.stat().st_mtime_ns
    except OSError:
        changed_ns = 0
    image = GeneratedImage(SampleFile(str(file), prompt, 0, changed_ns), caption)
    batch, length = settings.get("batch"), settings.get("row_length", 0)
    if type(batch) is not int or not 0 <= batch <= image.number or type(length) is not int or length < 0:
        return image
    return replace(image, batch=batch, row_length=length)


def read_folder(folder: Path) -> list[GeneratedImage]:
    """The newest images that were generated into the folder; takes milliseconds for each."""
    try:
        files = [file for file in folder.iterdir() if NAME.fullmatch(file.name)]
        files.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []
    return in_batches([read_image(file) for file in files[:MAX_IMAGES] if file.is_file()])


def in_batches(images: Sequence[GeneratedImage]) -> list[GeneratedImage]:
    """The newest batch first, the images of each in the order in which they were generated."""
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for image in images:
        newest[image.group] = max((image.sample.number, image.number), newest.get(image.group, (0, 0)))
    batches = sorted(newest, key=lambda group: newest[group], reverse=True)
    place = {group: index for index, group in enumerate(batches)}
    return sorted(images, key=lambda image: (place[image.group], image.number))


def blocks_of(images: Sequence[GeneratedImage]) -> list[Block]:
    """The rows of comparisons, which no other batch is mixed with, and between them the images of all others."""
    found, previous = list[Block](), None
    for (group, _), members in groupby(images, lambda each: (each.group if each.row_length else None, each.row)):
        row = list(members)
        found.append(Block(len(row), row[0].row_length, is_apart=group != previous))
        previous = group
    return found


def reusable(settings: Mapping[str, object]) -> dict[str, object]:
    """Those of an image's settings that the page can take over; wrong ones are left out."""
    found: dict[str, object] = {}
    for name in _REUSED:
        if name in settings:
            try:
                value = getattr(GenerateSettings.model_validate({name: settings[name]}), name)
            except ValueError:
                continue
            found[name] = as_drawn(value) if isinstance(value, str) else value
    return found


class Viewer(SampleViewer):
    """One image at full size; its settings can be taken over."""

    titles = _TITLES
    keys_help = "Left and right: other images.  Space: pause a video.  Esc: close."

    def __init__(self, parent: Results, sample: SampleFile, use: Use, train_on: TrainOn):
        super().__init__(parent, parent, sample)
        self.use = Button(self.buttons, "Use these settings", lambda: self._use(use), icon="refresh", bg=theme.CARD)
        self.train_on = Button(
            self.buttons, "Use as data", lambda: train_on(Path(self.sample.file)), icon="data", bg=theme.CARD
        )
        add_tooltip(self.train_on, _USE_AS_DATA)
        for button in (self.use, self.train_on):
            button.pack(anchor="w", pady=(8, 0))

    def heading(self, sample: SampleFile) -> str:
        """The prompt."""
        return sample.prompt

    def words(self, name: str, value: str) -> str:
        """A LoRA with its strength in words: RUN/FILE:STRENGTH, several with commas between."""
        if name != "lora":
            return value
        loras = (each.rpartition(":") for each in value.split(", "))
        return "\n".join(f"{file}, strength {strength}" if file else strength for file, _, strength in loras)

    def _use(self, use: Use) -> None:
        use(reusable(read_settings(Path(self.sample.file))))
        self.destroy()


class Results(tk.Frame):
    """`use` gets the settings of an image that are to be taken over, `train_on` an image that is to be trained on."""

    def __init__(self, parent: tk.Misc, use: Use, train_on: TrainOn) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._use, self._train_on = use, train_on
        self._viewer: Viewer | None = None
        self.images: list[GeneratedImage] = []
        self._keeps_scroll = False
        holder = card(self)
        holder.pack(fill="both", expand=True)
        self.grid_view = TileGrid(holder, self._open, _EMPTY)
        self.grid_view.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))

    def destroy(self) -> None:
        """Stop the image thread."""
        self.grid_view.close()
        super().destroy()

    def begin(self) -> None:
        """Images are about to be generated: they come into sight."""
        self._keeps_scroll = False

    def show(self, images: list[GeneratedImage]) -> None:
        """Show these images, which are in order."""
        if images != self.images:
            self.images = images
            self.grid_view.show(self.items, keep_scroll=self._keeps_scroll, blocks=blocks_of(images))
            self._keeps_scroll = True

    def add(self, file: Path) -> None:
        """Show an image that has just been generated, in its batch, before all others."""
        others = [image for image in self.images if image.sample.file != str(file)]
        self.show(in_batches([*others, read_image(file)])[:MAX_IMAGES])

    @property
    def items(self) -> list[tuple[SampleFile, str]]:
        """The images with their captions."""
        return [(image.sample, image.caption) for image in self.images]

    def of_prompt(self, prompt: str) -> list[SampleFile]:
        """All images, for the viewer."""
        return [image.sample for image in self.images]

    def at_step(self, step: int) -> list[SampleFile]:
        """All images, for the viewer."""
        return self.of_prompt("")

    def _open(self, sample: SampleFile) -> None:
        if self._viewer is not None and self._viewer.winfo_exists():
            self._viewer.destroy()
        self._viewer = Viewer(self, sample, self._use, self._train_on)
