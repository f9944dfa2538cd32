"""Rounded shapes as pictures with smooth edges: customtkinter's canvases leave gaps in thin borders."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import lru_cache

from PIL import Image, ImageDraw, ImageTk

OVERSAMPLING = 4
KEPT = 400


def rounded(
    widget: tk.Misc, width: int, height: int, radius: int, *, fill: str, line: str, on: str, line_width: int = 1
) -> ImageTk.PhotoImage:
    """A filled rounded rectangle with a border, on a background; sizes in pixels."""
    return _photo(widget, ("rounded", width, height, radius, fill, line, on, line_width))


def switch(
    widget: tk.Misc, width: int, height: int, *, turned: bool, track: str, knob: str, on: str, ring: str
) -> ImageTk.PhotoImage:
    """A switch; `ring` is the colour around it, that of the background where there is none."""
    return _photo(widget, ("switch", width, height, turned, track, knob, on, ring))


def disc(widget: tk.Misc, size: int, *, fill: str, on: str, ring: str) -> ImageTk.PhotoImage:
    """A filled circle with a ring around it."""
    return _photo(widget, ("disc", size, fill, on, ring))


_Key = tuple[object, ...]


def _photo(widget: tk.Misc, key: _Key) -> ImageTk.PhotoImage:
    """A picture belongs to one Tk; each keeps its own, so that equal controls share one."""
    root = widget.nametowidget(".")
    kept: dict[_Key, ImageTk.PhotoImage] = root.__dict__.setdefault("shapes_", {})
    if key not in kept:
        if len(kept) > KEPT:
            for old in list(kept)[: KEPT // 2]:
                del kept[old]  # those that are shown are kept alive by their widgets
        kept[key] = ImageTk.PhotoImage(_draw(key), master=root)
    return kept[key]


@lru_cache(KEPT)
def _draw(key: _Key) -> Image.Image:
    kind, *values = key
    return _SHAPES[str(kind)](*values)


def _draw_rounded(width: int, height: int, radius: int, fill: str, line: str, on: str, line_width: int) -> Image.Image:
    """Only the corners are drawn large: a wide field costs no more than a narrow one."""
    side = radius + 1
    corner = Image.new("RGB", (side * OVERSAMPLING,) * 2, on)
    pen = ImageDraw.Draw(corner)
    far = 4 * side * OVERSAMPLING
    pen.rounded_rectangle(
        (0, 0, far, far), radius * OVERSAMPLING, fill=fill, outline=line, width=line_width * OVERSAMPLING
    )
    corner = corner.resize((side, side), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", (max(width, 2 * side), max(height, 2 * side)), fill)
    flat = ImageDraw.Draw(picture)
    right, bottom = picture.width - 1, picture.height - 1
    for inset in range(line_width):
        flat.rectangle((inset, inset, right - inset, bottom - inset), outline=line)
    flip_x, flip_y = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM
    picture.paste(corner, (0, 0))
    picture.paste(corner.transpose(flip_x), (picture.width - side, 0))
    picture.paste(corner.transpose(flip_y), (0, picture.height - side))
    picture.paste(corner.transpose(flip_x).transpose(flip_y), (picture.width - side, picture.height - side))
    return picture


def _draw_switch(width: int, height: int, turned: bool, track: str, knob: str, on: str, ring: str) -> Image.Image:
    n = OVERSAMPLING
    picture = Image.new("RGB", (width * n, height * n), on)
    pen = ImageDraw.Draw(picture)
    w, h = width * n, height * n
    pen.rounded_rectangle((0, 0, w - 1, h - 1), h / 2, fill=ring)
    edge = 2 * n
    pen.rounded_rectangle((edge, edge, w - 1 - edge, h - 1 - edge), (h - 2 * edge) / 2, fill=track)
    gap = 4 * n
    left = w - h + gap if turned else gap
    pen.ellipse((left, gap, left + h - 2 * gap - 1, h - gap - 1), fill=knob)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _draw_disc(size: int, fill: str, on: str, ring: str) -> Image.Image:
    n = OVERSAMPLING
    picture = Image.new("RGB", (size * n, size * n), on)
    pen = ImageDraw.Draw(picture)
    pen.ellipse((0, 0, size * n - 1, size * n - 1), fill=ring)
    pen.ellipse((2 * n, 2 * n, size * n - 1 - 2 * n, size * n - 1 - 2 * n), fill=fill)
    return picture.resize((size, size), Image.Resampling.LANCZOS)


_SHAPES: dict[str, Callable[..., Image.Image]] = {
    "rounded": _draw_rounded,
    "switch": _draw_switch,
    "disc": _draw_disc,
}
