"""Painting the mask of an image."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.images.mask import LEFT_OUT, TRAINED, Mask, Point, draw_stroke, open_mask
from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Segments, frame, text
from app.widgets.inputs.slider import Slider
from app.windows.dialog import Dialog
from modules.files import FileFault, printable
from modules.files.trash import move_to_trash

_SIZE: Final = (900, 560)  # of the image at most, in unscaled pixels
_AROUND: Final = (96, 250)  # what the dialog needs beside and above it
_BRUSHES: Final = (2, 200, 99)  # the smallest and largest diameter in unscaled pixels of the screen, and the steps
_BRUSH: Final = 40
_DIMMED: Final = 0.25  # of the brightness where nothing is trained
_HELP: Final = (
    "What is bright is trained. Paint with the left button, take away with the right one; [ and ] change the brush."
)
PAINT, ERASE = "Paint", "Take away"
_VALUES: Final = {PAINT: TRAINED, ERASE: LEFT_OUT}


class MaskDialog:
    """Paints over the image, beginning with the mask in `former`, and writes `file`; `written` is called once that has
    another content."""

    def __init__(
        self, owner: tk.Misc, state: AppState, image: Path, former: Path, file: Path, written: Callable[[], object]
    ) -> None:
        self._state, self._image, self._former, self._file, self._written = state, image, former, file, written
        self.mask: Mask | None = None  # until the image is read
        self._last: Point | None = None  # where the stroke that is being painted has come to
        self._is_saved = True
        self.dialog = Dialog(owner, f"Mask of {printable(image.name, mask=False)}", _HELP, wide=True)
        self.dialog.on_cancel = self._leave
        root = owner.winfo_toplevel()
        width, height = root.winfo_width() - theme.px(_AROUND[0]), root.winfo_height() - theme.px(_AROUND[1])
        self._room = (
            max(theme.px(240), min(theme.px(_SIZE[0]), width)),
            max(theme.px(160), min(theme.px(_SIZE[1]), height)),
        )
        self._build_bar()
        self.canvas = tk.Canvas(
            self.dialog.body, width=self._room[0], height=self._room[1], highlightthickness=0, cursor="crosshair"
        )
        theme.paint(self.canvas, bg=theme.CARD)
        self.canvas.pack(pady=(theme.px(theme.UNIT), 0))
        self.message = text(self.dialog.body, "Reading the image…", "small", colour=theme.MUTED, wrap=560)
        self.message.pack(anchor="w", pady=(theme.px(theme.UNIT), 0))
        self.remove = self.dialog.button("Remove the mask", self._remove, "danger")
        self.remove.configure(state="normal" if os.path.exists(file) else "disabled")
        self.dialog.button("Cancel", self._leave)
        self.save = self.dialog.button("Save", self._save, "accent")
        self._bind()
        self._show_state()

    def show(self) -> tk.Toplevel:
        """Open the dialog, and read the image in a thread."""
        window = self.dialog.show()
        image, former = self._image, self._former
        self._state.background.run(lambda: _opened(image, former), self._read, self._fail)
        return window

    def _build_bar(self) -> None:
        bar = frame(self.dialog.body)
        bar.pack(fill="x")
        self.tool = Segments(bar, (PAINT, ERASE), self._choose, bg=theme.CARD)
        self.tool.set(PAINT)
        self.tool.pack(side="left")
        text(bar, "Brush", "small", colour=theme.MUTED).pack(side="left", padx=(theme.px(16), theme.px(4)))
        self.brush = Slider(bar, *_BRUSHES, lambda _: None)
        self.brush.show(_BRUSH)
        self.brush.pack(side="left")
        actions: dict[str, Callable[[Mask], object]] = {
            "Undo": Mask.undo,
            "Invert": Mask.invert,
            "Nothing": lambda mask: mask.fill(LEFT_OUT),
            "Everything": lambda mask: mask.fill(TRAINED),
        }
        self.buttons = {
            name: Button(bar, name, partial(self._act, action), bg=theme.CARD) for name, action in actions.items()
        }
        for button in self.buttons.values():
            button.pack(side="right", padx=(theme.UNIT, 0))

    def _bind(self) -> None:
        for number, value in ((1, None), (3, LEFT_OUT)):
            self.canvas.bind(f"<Button-{number}>", partial(self._press, value))
            self.canvas.bind(f"<B{number}-Motion>", partial(self._drag, value))
            self.canvas.bind(f"<ButtonRelease-{number}>", lambda event: self._end_stroke())
        self.canvas.bind("<Motion>", lambda event: self._show_brush(event.x, event.y))
        self.canvas.bind("<Leave>", lambda event: self.canvas.delete("brush"))
        window, step = self.dialog.window, (_BRUSHES[1] - _BRUSHES[0]) / _BRUSHES[2]
        window.bind("<bracketleft>", lambda event: self.brush.set(self.brush.get() - 4 * step))
        window.bind("<bracketright>", lambda event: self.brush.set(self.brush.get() + 4 * step))
        window.bind("<Control-z>", lambda event: self.buttons["Undo"].invoke())
        window.bind("<Control-s>", lambda event: self._save())

    def _choose(self, tool: str) -> None:
        self.tool.set(tool)

    def _read(self, found: tuple[Image.Image, Mask] | str) -> None:
        if not self.dialog.window.winfo_exists():
            return
        if isinstance(found, str):
            self._fail(found)
            return
        image, self.mask = found
        self._scale = min(self._room[0] / image.width, self._room[1] / image.height)
        size = max(1, round(image.width * self._scale)), max(1, round(image.height * self._scale))
        self._bright = image.resize(size, Image.Resampling.BILINEAR)
        self._dim = self._bright.point(lambda level: int(level * _DIMMED))
        self._origin = (self._room[0] - size[0]) // 2, (self._room[1] - size[1]) // 2
        self._photo = ImageTk.PhotoImage(self._bright, master=self.canvas)
        self.canvas.create_image(*self._origin, image=self._photo, anchor="nw")
        is_new = "" if os.path.exists(self._former) else " There is no mask yet: all of it is trained."
        self.message.configure(text=f"{image.width} × {image.height} pixels.{is_new}")
        self._draw_all()

    def _fail(self, why: str) -> None:
        if self.dialog.window.winfo_exists():
            theme.paint(self.message, fg=theme.BAD).configure(text=why)

    # Painting

    def _press(self, value: int | None, event: tk.Event[tk.Misc]) -> None:
        if self.mask is not None:
            self.mask.begin()
            self._last = self._point(event)
            self._drag(value, event)

    def _point(self, event: tk.Event[tk.Misc]) -> Point:
        return float(event.x - self._origin[0]), float(event.y - self._origin[1])

    def _end_stroke(self) -> None:
        self._last = None

    def _drag(self, value: int | None, event: tk.Event[tk.Misc]) -> None:
        """A stroke from where the pointer was, on the mask and on its picture on the screen."""
        if self.mask is None or self._last is None:
            return
        value = _VALUES[self.tool.get()] if value is None else value
        here, before, radius, scale = self._point(event), self._last, theme.px(self.brush.get()) / 2, self._scale
        self.mask.stroke(_scaled(before, 1 / scale), _scaled(here, 1 / scale), radius / scale, value)
        draw_stroke(self._small, before, here, radius, value)
        self._last, self._is_saved = here, False
        self._draw()
        self._show_brush(event.x, event.y)
        self._show_state()

    def _act(self, action: Callable[[Mask], object]) -> None:
        if self.mask is not None:
            action(self.mask)
            self._end_stroke()
            self._is_saved = False
            self._draw_all()

    def _draw_all(self) -> None:
        assert self.mask is not None
        self._small = self.mask.pixels.resize(self._bright.size, Image.Resampling.BILINEAR)
        self._draw()
        self._show_state()

    def _draw(self) -> None:
        self._photo.paste(Image.composite(self._bright, self._dim, self._small))

    def _show_brush(self, x: int, y: int) -> None:
        radius = theme.px(self.brush.get()) / 2
        self.canvas.delete("brush")
        for grown, colour in ((1, "black"), (0, "white")):  # one of them is seen on any image
            box = x - radius - grown, y - radius - grown, x + radius + grown, y + radius + grown
            self.canvas.create_oval(*box, outline=colour, tags="brush")

    def _show_state(self) -> None:
        for name, button in self.buttons.items():
            is_ready = self.mask is not None and (name != "Undo" or self.mask.can_undo)
            button.configure(state="normal" if is_ready else "disabled")
        self.save.configure(state="disabled" if self._is_saved else "normal")

    # Leaving

    def _save(self) -> None:
        if self.mask is not None and not self._is_saved:
            self._change(partial(self.mask.save, self._file))

    def _remove(self) -> None:
        self._unless_lost(lambda: self._change(lambda: move_to_trash(self._file)))

    def _change(self, change: Callable[[], object]) -> None:
        """Write or remove the file and close, or say why that is not possible."""
        try:
            change()
        except OSError as error:
            self._fail(f"{printable(self._file)}: {error.strerror or error}.")
            return
        except FileFault as fault:
            self._fail(f"{printable(self._file)} {fault}.")
            return
        self.dialog.close()
        self._written()

    def _leave(self) -> None:
        self._unless_lost(self.dialog.close)

    def _unless_lost(self, action: Callable[[], object]) -> None:
        """Do it, after a question if what was painted would be lost."""
        if self._is_saved:
            action()
            return

        def answered(answer: str) -> None:
            if answer:
                action()

        choices = (Choice("", "Go on painting", "accent"), Choice("leave", "Leave", "danger"))
        question = f"The mask of {printable(self._image.name, mask=False)} has changes that are not saved."
        ask(self.dialog.window, "Leave without saving?", question, choices, answered)


def _opened(image: Path, file: Path) -> tuple[Image.Image, Mask] | str:
    """The image and its mask, or why they cannot be read."""
    try:
        return open_mask(image, file)
    except FileFault as fault:
        return f"{printable(image.name)} or its mask {fault}."


def _scaled(point: Point, scale: float) -> Point:
    return point[0] * scale, point[1] * scale
