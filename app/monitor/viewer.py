"""One sample at full size with its generation settings; the arrow keys change step and prompt."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from PIL import Image, ImageTk

from app.monitor.playback import Playback
from app.monitor.tiles import fit_image, read_settings
from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.widgets.scroll import Scroll
from app.windows.dialog import EDGE
from modules.files.images import memory_to_decode, open_image
from modules.files.videos import video_beside
from modules.run.view.event_records import SampleFile

_SIZE: Final = (900, 620)
_SIDEBAR_WIDTH: Final = 260
_SCROLLBAR: Final = 14


_SETTINGS: Final = {
    "prompt": "Prompt",
    "written_prompt": "Prompt as written",
    "negative_prompt": "Negative prompt",
    "reference": "Reference image",
    "step": "After training step",
    "size": "Size",
    "frames": "Frames",
    "steps": "Sampling steps",
    "guidance_scale": "Guidance scale",
    "seed": "Seed",
    "file": "File",
}


class Neighbours(Protocol):
    """The images beside one: those of its prompt (left and right) and those of its step (up and down)."""

    def of_prompt(self, prompt: str) -> list[SampleFile]: ...
    def at_step(self, step: int) -> list[SampleFile]: ...


class SampleViewer(tk.Toplevel):
    """Left and right: same prompt, other step; up and down: other prompt of the step; Escape closes. A video plays."""

    titles: Mapping[str, str] = _SETTINGS
    keys_help = "Left and right: other steps.  Up and down: other prompts.  Space: pause a video.  Esc: close."

    def __init__(self, parent: tk.Misc, index: Neighbours, sample: SampleFile) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self.transient(parent.winfo_toplevel())
        most = self.winfo_screenwidth(), self.winfo_screenheight() - theme.px(EDGE)
        width, height = (min(theme.px(side), room) for side, room in zip(_SIZE, most, strict=True))
        top = parent.winfo_toplevel()
        x = top.winfo_rootx() + max(0, (top.winfo_width() - width) // 2)
        y = top.winfo_rooty() + max(0, (top.winfo_height() - height) // 3)
        x, y = max(0, min(x, self.winfo_screenwidth() - width)), max(0, min(y, most[1] - height))
        self.geometry(f"{width}x{height}+{x}+{y}")
        self._index = index
        self.sample = sample
        self.values: dict[str, tk.Label] = {}
        self._image: Image.Image | None = None
        self._photo: ImageTk.PhotoImage | None = None
        self._build()
        for key, act in (
            ("<Left>", lambda: self._step_by(-1)), ("<Right>", lambda: self._step_by(1)),
            ("<Up>", lambda: self._prompt_by(-1)), ("<Down>", lambda: self._prompt_by(1)),
            ("<space>", self._play_or_pause), ("<Escape>", self.destroy),
        ):  # fmt: skip
            self.bind(key, lambda event, act=act: act())  # type: ignore[misc]
        self.surface.bind("<Configure>", lambda event: self._draw())
        self.show(sample)
        self.focus_set()

    def show(self, sample: SampleFile) -> None:
        """Show another sample."""
        self.sample = sample
        self.title(self.heading(sample))
        file = Path(sample.file)
        settings = dict(read_settings(file))
        settings.setdefault("prompt", sample.prompt)
        settings.setdefault("step", sample.step)
        if settings.get("width") and settings.get("height"):
            settings["size"] = f"{settings['width']} × {settings['height']}"
        settings["file"] = str(file)
        for name, label in self.values.items():
            value = settings.get(name)
            label.configure(text="-" if value in (None, "") else self.words(name, str(value))[:400])
        if "written_prompt" in settings:
            self._written.grid()
        else:
            self._written.grid_remove()
        try:
            with open_image(file) as image, memory_to_decode(image):
                self._image = image.convert("RGB")
        except Exception:  # noqa: BLE001  # Pillow's readers raise any exception on damaged files
            self._image = None
        self._draw()
        if self.playback.show(video_beside(file)):
            self.play.pack(anchor="w", pady=(0, theme.px(8)), before=self.copy)
            self._show_play()
        else:
            self.play.pack_forget()

    def heading(self, sample: SampleFile) -> str:
        """The title of the window."""
        return f"Step {sample.step:,}: {sample.prompt}"

    def words(self, name: str, value: str) -> str:
        """How the value of a setting is shown."""
        return value

    def _build(self) -> None:
        side = frame(self)
        side.pack(side="right", fill="y", padx=theme.px(20), pady=theme.px(20))
        side.configure(width=theme.px(_SIDEBAR_WIDTH))
        side.pack_propagate(False)
        self.buttons = frame(side)
        self.buttons.pack(side="bottom", anchor="w")
        self.play = Button(self.buttons, "Pause", self._play_or_pause, icon="pause", bg=theme.CARD)  # of a video
        self.copy = Button(self.buttons, "Copy prompt", self._copy, icon="copy", bg=theme.CARD)
        self.copy.pack(anchor="w")
        text(
            side,
            self.keys_help,
            "small",
            colour=theme.FAINT,
            wrap=_SIDEBAR_WIDTH,
        ).pack(side="bottom", anchor="w", pady=theme.px(10))
        scroll = Scroll(side, theme.CARD)  # a long prompt needs more than a low screen has
        scroll.pack(fill="both", expand=True)
        for row, (name, title) in enumerate(self.titles.items()):
            entry = frame(scroll.inside)
            entry.grid(row=row, sticky="w")
            if name == "written_prompt":
                self._written = entry
            text(entry, title, "small", colour=theme.MUTED).pack(anchor="w")
            label = text(entry, "-", wrap=_SIDEBAR_WIDTH - _SCROLLBAR)
            label.pack(anchor="w", pady=(0, theme.px(10)))
            self.values[name] = label
        self.surface = tk.Canvas(self, borderwidth=0, highlightthickness=0)
        theme.paint(self.surface, bg=theme.WINDOW)
        self.surface.pack(side="left", fill="both", expand=True)
        self.playback = Playback(self.surface, self._draw_frame)

    def _draw(self) -> None:
        surface = self.surface
        surface.delete("all")
        width, height = surface.winfo_width(), surface.winfo_height()
        if self._image is None:
            surface.create_text(
                width / 2, height / 2, text="unreadable", fill=theme.resolve(theme.FAINT), font=theme.tk_font()
            )
        elif width > 20 and height > 20:
            margin = theme.px(20)
            self._photo = ImageTk.PhotoImage(fit_image(self._image, max(20, width - margin), max(20, height - margin)))
            surface.create_image(width / 2, height / 2, image=self._photo)

    def _draw_frame(self, frame: Image.Image) -> None:
        self._image = frame
        self._draw()

    def _play_or_pause(self) -> None:
        if self.playback.is_playing:
            self.playback.pause()
        else:
            self.playback.play()
        self._show_play()

    def _show_play(self) -> None:
        playing = self.playback.is_playing
        self.play.configure(text="Pause" if playing else "Play", icon="pause" if playing else "play")

    def _step_by(self, by: int) -> None:
        self._show_neighbour(self._index.of_prompt(self.sample.prompt), by)

    def _prompt_by(self, by: int) -> None:
        self._show_neighbour(self._index.at_step(self.sample.step), by)

    def _show_neighbour(self, samples: list[SampleFile], by: int) -> None:
        indices = [index for index, each in enumerate(samples) if each.file == self.sample.file]
        if indices and 0 <= indices[0] + by < len(samples):
            self.show(samples[indices[0] + by])

    def _copy(self) -> None:
        self.clipboard_clear()
        self.clipboard_append(str(self.values["prompt"].cget("text")))
