"""Icons as strokes on a 24 x 24 grid, drawn at four times the size and scaled down for smooth edges."""

from __future__ import annotations

import tkinter as tk
from functools import cache
from tkinter import ttk

from PIL import Image, ImageDraw, ImageTk

from app.widgets import theme

GRID = 24
OVERSAMPLING = 4
STROKE = 1.8

# Per icon: strokes "x,y x,y ..."; "o x,y r" is a circle, "a x,y r from to" an arc in degrees, "f ..." a filled shape,
# "d x,y r" a filled circle.
ICONS: dict[str, list[str]] = {
    "blank": [],
    "dot": ["d 12,12 9"],
    "brand": ["o 7.5,14 4.7", "o 16.5,14 4.7", "7.5,14 10.5,7.5 16.5,14", "10.5,7.5 9,5 7,5"],
    "model": ["12,3 20,7.5 20,16.5 12,21 4,16.5 4,7.5 12,3", "4,7.5 12,12 20,7.5", "12,12 12,21"],
    "data": ["4,5 20,5 20,19 4,19 4,5", "4,16 9,11 13,15 16,12.5 20,16", "d 15.5,9 1.5"],
    "training": ["3,18 8,12 12,15 21,5", "15.5,5 21,5 21,10.5"],
    "adapters": ["8,3 8,8", "16,3 16,8", "5,8 19,8 19,12 15,16.5 9,16.5 5,12 5,8", "12,16.5 12,21"],
    "multi_gpu": [
        "7,7 17,7 17,17 7,17 7,7",
        "10,3 10,7",
        "14,3 14,7",
        "10,17 10,21",
        "14,17 14,21",
        "3,10 7,10",
        "3,14 7,14",
        "17,10 21,10",
        "17,14 21,14",
    ],
    "sampling": ["12,3 13.8,10.2 21,12 13.8,13.8 12,21 10.2,13.8 3,12 10.2,10.2 12,3"],
    "output": ["3,7 3,19 21,19 21,7 12,7 10,4.5 3,4.5 3,7", "12,10 12,16", "9,13.5 12,16.2 15,13.5"],
    "monitor": ["3,12 7,12 10,5 14,19 17,12 21,12"],
    "tools": ["a 16.5,7.5 4 -20 290", "13.7,10.3 4.5,19.5", "17.9,6.1 15.5,8.5"],
    "generate": [
        "4,20 13,11",
        "16.5,3 16.5,10",
        "13,6.5 20,6.5",
        "7,4 7,7.5",
        "5.25,5.75 8.75,5.75",
        "19,14 19,17.5",
        "17.25,15.75 20.75,15.75",
    ],
    "open": ["3,19 3,5 9,5 11,7.5 19,7.5 19,10.5", "3,19 6,10.5 22,10.5 19,19 3,19"],
    "save": ["4,4 16.5,4 20,7.5 20,20 4,20 4,4", "8,4 8,9 15,9 15,4", "7.5,20 7.5,13.5 16.5,13.5 16.5,20"],
    "undo": ["8,4.5 4,8.5 8,12.5", "4,8.5 14.5,8.5", "a 14.5,13.5 5 -90 90", "14.5,18.5 9,18.5"],
    "redo": ["16,4.5 20,8.5 16,12.5", "20,8.5 9.5,8.5", "a 9.5,13.5 5 90 270", "9.5,18.5 15,18.5"],
    "search": ["o 10.5,10.5 6.5", "15.5,15.5 20.5,20.5"],
    "presets": [
        "5,4 5,10",
        "5,14 5,20",
        "12,4 12,6",
        "12,10 12,20",
        "19,4 19,13",
        "19,17 19,20",
        "o 5,12 2",
        "o 12,8 2",
        "o 19,15 2",
    ],
    "more": ["d 5,12 1.7", "d 12,12 1.7", "d 19,12 1.7"],
    "down": ["6,9.5 12,15.5 18,9.5"],
    "up": ["6,14.5 12,8.5 18,14.5"],
    "right": ["9.5,6 15.5,12 9.5,18"],
    "check": ["4.5,12.5 10,18 20,6.5"],
    "close": ["6,6 18,18", "18,6 6,18"],
    "plus": ["12,5 12,19", "5,12 19,12"],
    "copy": ["9,9 20,9 20,20 9,20 9,9", "15,9 15,4 4,4 4,15 9,15"],
    "trash": ["4,7 20,7", "9,7 9,4 15,4 15,7", "6,7 7,20 17,20 18,7", "10,11 10,16", "14,11 14,16"],
    "reset": ["a 12,12.5 7.5 -60 210", "4.5,4.5 5,9.5 10,8.8"],
    "folder": ["3,6 3,19 21,19 21,8 12,8 10,5 3,5 3,6"],
    "home": ["3.5,11.5 12,4 20.5,11.5", "6,9.5 6,20 18,20 18,9.5", "10,20 10,14 14,14 14,20"],
    "file": ["6,3 14,3 19,8 19,21 6,21 6,3", "14,3 14,8 19,8"],
    "sun": [
        "o 12,12 4",
        "12,2.5 12,4.5",
        "12,19.5 12,21.5",
        "2.5,12 4.5,12",
        "19.5,12 21.5,12",
        "5.3,5.3 6.7,6.7",
        "17.3,17.3 18.7,18.7",
        "5.3,18.7 6.7,17.3",
        "17.3,6.7 18.7,5.3",
    ],
    "moon": ["a 12,12 8.5 20 250", "a 16.5,7.5 8.4 73 197"],
    "system": ["3,4 21,4 21,16 3,16 3,4", "8,20 16,20", "12,16 12,20"],
    "help": ["o 12,12 9", "a 12,9.7 2.7 180 405", "13.9,11.6 12,13.4 12,14.2", "d 12,17.2 1.1"],
    "keyboard": [
        "2.5,6 21.5,6 21.5,18 2.5,18 2.5,6",
        "7,14.5 17,14.5",
        "d 6.5,10 1",
        "d 10.2,10 1",
        "d 13.8,10 1",
        "d 17.5,10 1",
    ],
    "bell": ["5,17 19,17", "a 12,10 5.5 180 360", "6.5,10 6.5,14 5,17", "17.5,10 17.5,14 19,17", "a 12,18 2.5 0 180"],
    "info": ["o 12,12 9", "12,11 12,16.5", "d 12,7.7 1.2"],
    "warning": ["12,3.5 21.5,20 2.5,20 12,3.5", "12,10 12,14.5", "d 12,17.2 1.1"],
    "play": ["f 7,4.5 19.5,12 7,19.5"],
    "pause": ["f 7,5 10.5,5 10.5,19 7,19", "f 13.5,5 17,5 17,19 13.5,19"],
    "stop": ["f 6,6 18,6 18,18 6,18"],
    "backup": ["a 12,12 8.5 -200 70", "3.2,5 3.6,9.6 8.2,9.2", "12,7.5 12,12.5 15.5,14.5"],
    "image": ["4,5 20,5 20,19 4,19 4,5", "4,16 9,11 13,15 16,12.5 20,16", "d 15.5,9 1.5"],
    "chart": ["4,4 4,20 20,20", "8,15 11.5,10.5 14.5,13 19,7"],
    "unet": ["3.5,4 3.5,20", "7.75,8 7.75,20", "12,12.5 12,20", "16.25,8 16.25,20", "20.5,4 20.5,20"],
    "layers": ["12,3 21,7.5 12,12 3,7.5 12,3", "3,12 12,16.5 21,12", "3,16.5 12,21 21,16.5"],
    "link": ["10,14 14,10", "a 8,16 4 45 225", "a 16,8 4 225 405"],
    "refresh": ["a 12,12 8 -170 -20", "a 12,12 8 10 160", "19.8,3.5 19.5,9.2 14,8.6", "4.2,20.5 4.5,14.8 10,15.4"],
    "terminal": ["3,5 21,5 21,19 3,19 3,5", "7,9.5 10,12 7,14.5", "12.5,14.5 16.5,14.5"],
    "left": ["14.5,6 8.5,12 14.5,18"],
    "scale": ["3,19 8,6 13,19", "4.6,15 11.4,15", "14,19 17.5,10 21,19", "15.2,16 19.8,16"],
}


def image(name: str, size: int, colour: theme.Colour) -> ImageTk.PhotoImage:
    """The icon for a plain tk widget in the current theme; `size` in unscaled pixels. Keep a reference to it."""
    return ImageTk.PhotoImage(_drawn(name, theme.px(size), theme.resolve(colour)))


def label(parent: tk.Misc, name: str, size: int, colour: theme.Colour, background: theme.Colour) -> tk.Label:
    """An icon as a label."""
    widget = tk.Label(parent, borderwidth=0, highlightthickness=0)
    theme.paint(widget, bg=background)
    show(widget, name, size, colour)
    return widget


def show(widget: tk.Label, name: str, size: int, colour: theme.Colour) -> None:
    """Put an icon on a label; it follows the theme."""

    def draw() -> None:
        photo = image(name, size, colour)
        widget.configure(image=photo)
        widget.photo = photo  # type: ignore[attr-defined]  # Tk itself keeps no reference

    theme.follow(widget, "icon", draw)


def show_in_heading(tree: ttk.Treeview, column: str, name: str, size: int, colour: theme.Colour) -> None:
    """Put an icon before the title of a table's column; it follows the theme."""
    kept: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference

    def draw() -> None:
        kept[:] = [image(name, size, colour)]
        tree.heading(column, image=str(kept[0]))

    theme.follow(tree, f"icon of {column}", draw)


@cache
def _drawn(name: str, size: int, colour: str) -> Image.Image:
    factor = size * OVERSAMPLING / GRID
    alpha = Image.new("L", (size * OVERSAMPLING,) * 2)
    pen = ImageDraw.Draw(alpha)
    for stroke in ICONS[name]:
        _stroke(pen, stroke, factor)
    small = alpha.resize((size, size), Image.Resampling.LANCZOS)
    icon = Image.new("RGBA", (size, size), colour)
    icon.putalpha(small)
    return icon


def _stroke(pen: ImageDraw.ImageDraw, stroke: str, factor: float) -> None:
    width = STROKE * factor
    kind, *numbers = stroke.split() if stroke[0] in "oafd" else ("line", *stroke.split())
    if kind in ("line", "f"):
        points = [(float(x) * factor, float(y) * factor) for x, y in (word.split(",") for word in numbers)]
        if kind == "f":
            pen.polygon(points, fill=255)
        pen.line([*points, *points[: 1 if kind == "f" else 0]], fill=255, width=round(width), joint="curve")
        for x, y in points:  # round ends and corners
            _disc(pen, x, y, width / 2)
        return
    x, y = (float(part) * factor for part in numbers[0].split(","))
    radius = float(numbers[1]) * factor
    if kind == "d":
        _disc(pen, x, y, radius)
        return
    outer = radius + width / 2
    box = (x - outer, y - outer, x + outer, y + outer)
    start, end = (float(numbers[2]), float(numbers[3])) if kind == "a" else (0.0, 360.0)
    pen.arc(box, start, end, fill=255, width=round(width))


def _disc(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
