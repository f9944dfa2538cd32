"""One sample at full size with the settings that its file holds; the arrow keys go through time and prompts."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app import look, texts
from app.controls import Button, frame, text
from app.monitor.sample_index import SampleIndex
from app.monitor.tiles import fitted, read_settings
from app.run_facts import SampleFile

_SIZE: Final = (900, 620)
_SIDE: Final = 260
_ROWS: Final = ("prompt", "negative_prompt", "step", "size", "steps", "guidance_scale", "seed", "file")


class Viewer(tk.Toplevel):
    """Left and right: the same prompt at another step; up and down: another prompt of the step; Escape closes."""

    def __init__(self, parent: tk.Misc, index: SampleIndex, sample: SampleFile) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        self.transient(parent.winfo_toplevel())
        width, height = (look.px(side) for side in _SIZE)
        top = parent.winfo_toplevel()
        x = top.winfo_rootx() + max(0, (top.winfo_width() - width) // 2)
        y = top.winfo_rooty() + max(0, (top.winfo_height() - height) // 3)
        self.geometry(f"{width}x{height}+{x}+{y}")
        self._index = index
        self.sample = sample
        self.values: dict[str, tk.Label] = {}
        self._picture: Image.Image | None = None
        self._photo: ImageTk.PhotoImage | None = None
        self._build()
        for key, act in (
            ("<Left>", lambda: self._through_time(-1)), ("<Right>", lambda: self._through_time(1)),
            ("<Up>", lambda: self._through_prompts(-1)), ("<Down>", lambda: self._through_prompts(1)),
            ("<Escape>", self.destroy),
        ):  # fmt: skip
            self.bind(key, lambda event, act=act: act())  # type: ignore[misc]
        self.surface.bind("<Configure>", lambda event: self._draw())
        self.show(sample)
        self.focus_set()

    def show(self, sample: SampleFile) -> None:
        """Another picture."""
        self.sample = sample
        self.title(texts.VIEWER_TITLE.format(step=sample.step, prompt=sample.prompt))
        file = Path(sample.file)
        settings = dict(read_settings(file))
        settings.setdefault("prompt", sample.prompt)
        settings.setdefault("step", sample.step)
        if settings.get("width") and settings.get("height"):
            settings["size"] = f"{settings['width']} x {settings['height']}"
        settings["file"] = str(file)
        for name, label in self.values.items():
            value = settings.get(name)
            label.configure(text="-" if value in (None, "") else str(value)[:400])
        try:
            with file.open("rb") as opened, Image.open(opened) as picture:
                self._picture = picture.convert("RGB")
        except Exception:  # noqa: BLE001  # Pillow's readers raise whatever a damaged file makes them
            self._picture = None
        self._draw()

    def _build(self) -> None:
        side = frame(self)
        side.pack(side="right", fill="y", padx=look.px(20), pady=look.px(20))
        side.configure(width=look.px(_SIDE))
        side.pack_propagate(False)
        for name in _ROWS:
            text(side, texts.SAMPLE_SETTINGS[name], "small", colour=look.MUTED).pack(anchor="w")
            label = text(side, "-", wrap=_SIDE)
            label.pack(anchor="w", pady=(0, look.px(10)))
            self.values[name] = label
        Button(side, texts.COPY_PROMPT, self._copy, icon="copy", on=look.CARD).pack(side="bottom", anchor="w")
        text(side, texts.VIEWER_KEYS, "small", colour=look.FAINT, wrap=_SIDE).pack(
            side="bottom", anchor="w", pady=look.px(10)
        )
        self.surface = tk.Canvas(self, borderwidth=0, highlightthickness=0)
        look.paint(self.surface, bg=look.WINDOW)
        self.surface.pack(side="left", fill="both", expand=True)

    def _draw(self) -> None:
        surface = self.surface
        surface.delete("all")
        width, height = surface.winfo_width(), surface.winfo_height()
        if self._picture is None:
            surface.create_text(
                width / 2, height / 2, text=texts.NO_PICTURE, fill=look.now(look.FAINT), font=look.tk_font()
            )
        elif width > 20 and height > 20:
            room = look.px(20)
            self._photo = ImageTk.PhotoImage(fitted(self._picture, max(20, width - room), max(20, height - room)))
            surface.create_image(width / 2, height / 2, image=self._photo)

    def _through_time(self, by: int) -> None:
        self._go(self._index.of_prompt(self.sample.prompt), by)

    def _through_prompts(self, by: int) -> None:
        self._go(self._index.at_step(self.sample.step), by)

    def _go(self, samples: list[SampleFile], by: int) -> None:
        places = [place for place, each in enumerate(samples) if each.file == self.sample.file]
        if places and 0 <= places[0] + by < len(samples):
            self.show(samples[places[0] + by])

    def _copy(self) -> None:
        self.clipboard_clear()
        self.clipboard_append(str(self.values["prompt"].cget("text")))
