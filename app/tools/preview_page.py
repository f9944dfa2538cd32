"""Images as training will see them: crop, size, mirroring, colours, and the caption after all settings for captions."""

from __future__ import annotations

import json
import tkinter as tk
from pathlib import Path
from typing import Final, cast

from PIL import Image, ImageTk

from app.images.image_index import absolute_concepts
from app.state import AppState
from app.tools.line_program import Answer
from app.tools.model_tasks import ModelTask, ToolField
from app.tools.program_page import ProgramPage
from app.tools.tool_form import ToolForm
from app.widgets import theme
from app.widgets.buttons import Entry, Menu, card, frame, text
from modules.files.images import open_image

SETTINGS: Final = (
    *("concepts", "resolution", "aspect_ratio_bucketing", "no_upscale", "bucket_step", "largest_aspect"),
    *("fewer_buckets", "validation_split", "caption_dropout", "masked_training", "reference_resolution"),
    *("family", "frames", "fps", "clips", "cache_latents", "seed", "batch_size", "gradient_accumulation_steps"),
    *("global_batch_size", "drop_last"),
)
MODULE: Final = "modules.data.loading.preview"
COUNTS: Final = ("12", "24", "48")
_TASK: Final = ModelTask(
    "preview",
    "Preview as trained",
    "",
    (
        ToolField("epoch", "Epoch", "integer", "Crops, mirroring and captions differ from epoch to epoch.", "1"),
        ToolField(
            "count", "Number of samples", "choice", "The first ones of that epoch.", "12", {n: n for n in COUNTS}
        ),
    ),
)
_SIDE: Final = 210  # unscaled pixels of an image
_TILE: Final = 236
_GAP: Final = 8  # around each, as around the card above
_EPOCH, _COUNT = 2, 3  # arguments of the program


class PreviewPage(ProgramPage):
    """Draws the first samples of an epoch by the data code of training."""

    name = _TASK.name
    start_label = "Preview"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        self.form = form = ToolForm(self.head, _TASK, lambda name: None, state.typed[_TASK.name])
        form.pack(fill="x", expand=True)
        self.epoch = cast("Entry", form.controls["epoch"])
        self.count = cast("Menu", form.controls["count"])
        self.samples: list[Answer] = []
        self._tiles: list[tk.Widget] = []
        self._photos: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference
        self._columns = 0
        self.scroll.inside.bind("<Configure>", lambda event: self._arrange(), add="+")
        self.say("Uses the settings of Data: crops, sizes, mirroring, colours and captions are those of the run.")
        self.follow()

    def start(self) -> None:
        """Draw the samples."""
        epoch = self.epoch.get().strip()
        data = self.state.draft.data
        if not (epoch.isdecimal() and 1 <= int(epoch) <= 10**6):
            self.say(f"The epoch is {epoch!r}; use a whole number from 1.", theme.BAD)
            return
        if not data.get("concepts"):
            self.say("There are no images yet: add a folder under Data.", theme.BAD)
            return
        self._clear()
        settings = {name: data[name] for name in SETTINGS if data.get(name) is not None}
        settings["concepts"] = absolute_concepts(settings["concepts"])
        family = self.state.family.declaration
        size_step = 8 if family is None else family.size_step
        cached = bool(settings.get("cache_latents", True)) and (family is None or family.draws_samples)
        arguments = ["{folder}", str(size_step), str(int(epoch) - 1), self.count.value(), *(["cached"] * cached)]
        self.say("Reading the images…")
        self.run(MODULE, arguments, json.dumps(settings))

    def answer(self, answer: Answer) -> None:
        """Add a tile."""
        try:
            self._add(answer)
        except (OSError, ValueError, KeyError):
            return  # the program was closed meanwhile
        self.samples.append(answer)
        assert self.program is not None
        self.progress.show(len(self.samples) / int(self.program.arguments[_COUNT]), busy=True)

    def ended(self) -> None:
        """Say how many there are."""
        assert self.program is not None
        epoch = int(self.program.arguments[_EPOCH]) + 1
        what = f"{len(self.samples)} samples of epoch {epoch}." if self.samples else "There are no samples."
        problems = sum(bool(sample.get("problem")) for sample in self.samples)
        self.say(what + (f" {problems} of them cannot be read." if problems else ""))

    def _clear(self) -> None:
        for tile in self._tiles:
            tile.destroy()
        self.samples, self._tiles, self._photos, self._columns = [], [], [], 0

    def _add(self, sample: Answer) -> None:
        with open_image(str(sample["file"])) as image:
            small = image.convert("RGB")
        side = theme.px(_SIDE)
        factor = min(side / small.width, side / small.height)
        small = small.resize(
            (max(1, round(small.width * factor)), max(1, round(small.height * factor))), Image.Resampling.LANCZOS
        )
        photo = ImageTk.PhotoImage(small, master=self)
        self._photos.append(photo)
        tile = card(self.scroll.inside)
        inside = frame(tile)
        inside.pack(padx=theme.px(12), pady=(theme.px(12), theme.px(10)))
        widest = frame(inside)
        widest.configure(width=side, height=1)
        widest.pack()
        picture = tk.Label(inside, image=str(photo), borderwidth=0)
        theme.paint(picture, bg=theme.CARD)
        picture.pack(pady=(0, theme.px(6)))
        for line, colour, name in zip(
            describe(sample), (theme.TEXT, theme.MUTED, theme.MUTED), ("body", "small", "small"), strict=True
        ):
            text(inside, line, name, colour=colour, wrap=_SIDE).pack(anchor="w")  # type: ignore[arg-type]
        self._tiles.append(tile)
        self._columns = 0
        self._arrange()

    def _arrange(self) -> None:
        """As many columns as there is room for, which they fill."""
        columns = max(1, self.scroll.inside.winfo_width() // theme.px(_TILE + 2 * _GAP))
        if columns == self._columns:
            return
        self._columns = columns
        for column in range(max(columns, self.scroll.inside.grid_size()[0])):
            is_used = column < columns
            self.scroll.inside.grid_columnconfigure(column, weight=is_used, uniform="tiles" if is_used else "")
        for number, tile in enumerate(self._tiles):
            tile.grid(row=number // columns, column=number % columns, sticky="new", padx=_GAP, pady=_GAP)


def describe(sample: Answer) -> tuple[str, str, str]:
    """The caption; size and mirroring; where it is from."""
    size, before = (sample[name] for name in ("size", "source_size"))
    assert isinstance(size, list)
    assert isinstance(before, list)
    mirrored = ", mirrored" if sample.get("flipped") else ""
    weight = sample.get("weight")
    counts = "" if weight == 1 else f", weight {weight:g}" if isinstance(weight, int | float) else ""
    frames = sample.get("frames", 1)
    clip = "" if frames == 1 else f" × {frames} frames"
    shown = f"{size[0]} × {size[1]}{clip}, file {before[0]} × {before[1]}{mirrored}{counts}"
    return (
        str(sample["caption"]) or "(no caption)",
        shown,
        str(sample.get("problem") or Path(str(sample["source"])).name),
    )
