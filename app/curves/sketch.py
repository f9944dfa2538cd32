"""A small curve or histogram without controls, which is drawn in milliseconds."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from PIL import Image, ImageDraw, ImageTk

from app.widgets import theme

HEIGHT: Final = 128  # unscaled pixels
_OVERSAMPLING: Final = 3
_TOP, _BOTTOM, _SIDE = 8, 20, 2  # unscaled pixels around the drawing
_LINE: Final = 1.8


@dataclass(frozen=True)
class Curve:
    """Values in [0, 1], evenly spaced from left to right, as a line or as `bars`; labels are below and above it."""

    values: Sequence[float] = ()
    left: str = ""
    middle: str = ""
    right: str = ""
    top: str = ""  # what the values 0 and 1 are
    bars: bool = False


class Sketch(tk.Canvas):
    """Draws the curve that `show` gives it, in the width that it has."""

    def __init__(self, parent: tk.Misc, bg: theme.Colour = theme.CARD) -> None:
        super().__init__(parent, height=theme.px(HEIGHT), width=10, borderwidth=0, highlightthickness=0)
        self._bg = bg
        self.curve = Curve()
        self._photo: ImageTk.PhotoImage | None = None
        self.bind("<Configure>", lambda event: self._draw())
        theme.paint(self, bg=bg)
        theme.follow(self, "sketch", self._draw)

    def show(self, curve: Curve) -> None:
        """Draw this curve instead."""
        if curve != self.curve:
            self.curve = curve
            self._draw()

    def _draw(self) -> None:
        self.delete("all")
        width, height = self.winfo_width(), theme.px(HEIGHT)
        top = theme.px(_BOTTOM if self.curve.top else _TOP)  # its label stands above the drawing
        side, bottom = theme.px(_SIDE), height - theme.px(_BOTTOM)
        if width < theme.px(60) or len(self.curve.values) < 2:
            return
        size = (width - 2 * side, bottom - top)
        image = draw_curve(
            self.curve,
            size,
            theme.px(_LINE * 10) / 10,
            *map(theme.resolve, (theme.ACCENT, theme.ACCENT_SOFT, self._bg)),
        )
        self._photo = ImageTk.PhotoImage(image, master=self)
        self.create_image(side, top, anchor="nw", image=self._photo)
        self.create_line(side, bottom, width - side, bottom, fill=theme.resolve(theme.LINE))
        at = {
            "w": (side, self.curve.left),
            "center": (width // 2, self.curve.middle),
            "e": (width - side, self.curve.right),
        }
        for anchor, (x, label) in at.items():
            self._label(x, (bottom + height) // 2 + 1, label, anchor)
        if self.curve.top:
            self._label(width - side, top // 2, self.curve.top, "e")

    def _label(self, x: int, y: int, label: str, anchor: str) -> None:
        ink, font = theme.resolve(theme.MUTED), theme.tk_font("small")
        self.create_text(x, y, text=label, anchor=anchor, fill=ink, font=font)  # type: ignore[call-overload]


def draw_curve(curve: Curve, size: tuple[int, int], line_width: float, line: str, fill: str, bg: str) -> Image.Image:
    """The curve or bars alone, RGB, `size` = (width, height) in pixels, the area below the curve filled."""
    width, height = (side * _OVERSAMPLING for side in size)
    image = Image.new("RGB", (width, height), bg)
    pen = ImageDraw.Draw(image)
    pen_width = max(1, round(line_width * _OVERSAMPLING))
    room = height - 2 * pen_width
    highs = [pen_width + room * (1 - min(max(value, 0.0), 1.0)) for value in curve.values]
    if curve.bars:
        step = width / len(highs)
        for number, high in enumerate(highs):
            if curve.values[number] > 0:
                pen.rectangle((number * step, high, (number + 1) * step - 2 * _OVERSAMPLING, height), fill=line)
    else:
        points = [(number * (width - 1) / (len(highs) - 1), high) for number, high in enumerate(highs)]
        pen.polygon([(0, height), *points, (width, height)], fill=fill)
        pen.line(points, fill=line, width=pen_width, joint="curve")
    return image.resize(size, Image.Resampling.BOX)
