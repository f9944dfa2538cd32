"""Rounded shapes as antialiased images; customtkinter's canvases leave gaps in thin borders."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import lru_cache

from PIL import Image, ImageDraw, ImageTk

OVERSAMPLING = 4
CACHE_SIZE = 400


def rounded(
    widget: tk.Misc, width: int, height: int, radius: int, *, fill: str, line: str, bg: str, line_width: int = 1
) -> ImageTk.PhotoImage:
    """A filled rounded rectangle with a border on a background; sizes in pixels."""
    return _photo(widget, ("rounded", width, height, radius, fill, line, bg, line_width))


def corner(widget: tk.Misc, radius: int, anchor: str, *, fill: str, line: str, bg: str) -> ImageTk.PhotoImage:
    """One corner ("nw", "ne", "sw", "se") of a rounded rectangle with a border of one pixel."""
    return _photo(widget, ("corner", radius, anchor, fill, line, bg))


def switch(
    widget: tk.Misc, width: int, height: int, *, is_on: bool, track: str, knob: str, bg: str, ring: str
) -> ImageTk.PhotoImage:
    """A switch; `ring` is the colour around it, equal to the background for none. Sizes in pixels."""
    return _photo(widget, ("switch", width, height, is_on, track, knob, bg, ring))


def disc(widget: tk.Misc, size: int, *, fill: str, ring: str = "") -> ImageTk.PhotoImage:
    """A filled circle on any background; `ring` is the colour of its border of two pixels, none if empty."""
    return _photo(widget, ("disc", size, fill, ring or fill))


_Key = tuple[object, ...]


def _photo(widget: tk.Misc, key: _Key) -> ImageTk.PhotoImage:
    """Cached per Tk root, to which images belong; equal controls share one image."""
    root = widget.nametowidget(".")
    cache: dict[_Key, ImageTk.PhotoImage] = root.__dict__.setdefault("rounded_images_", {})
    if key not in cache:
        if len(cache) > CACHE_SIZE:
            for old in list(cache)[: CACHE_SIZE // 2]:
                del cache[old]  # visible ones are kept alive by their widgets
        cache[key] = ImageTk.PhotoImage(_draw(key), master=root)
    return cache[key]


@lru_cache(CACHE_SIZE)
def _draw(key: _Key) -> Image.Image:
    kind, *values = key
    return _SHAPES[str(kind)](*values)


def _draw_rounded(width: int, height: int, radius: int, fill: str, line: str, bg: str, line_width: int) -> Image.Image:
    """Oversample only the corners: a wide field costs no more than a narrow one."""
    corner = _upper_left(radius, fill, line, bg, line_width)
    side = corner.width
    image = Image.new("RGB", (max(width, 2 * side), max(height, 2 * side)), fill)
    flat = ImageDraw.Draw(image)
    right, bottom = image.width - 1, image.height - 1
    for inset in range(line_width):
        flat.rectangle((inset, inset, right - inset, bottom - inset), outline=line)
    flip_x, flip_y = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM
    image.paste(corner, (0, 0))
    image.paste(corner.transpose(flip_x), (image.width - side, 0))
    image.paste(corner.transpose(flip_y), (0, image.height - side))
    image.paste(corner.transpose(flip_x).transpose(flip_y), (image.width - side, image.height - side))
    return image


def _upper_left(radius: int, fill: str, line: str, bg: str, line_width: int) -> Image.Image:
    side = radius + 1
    image = Image.new("RGB", (side * OVERSAMPLING,) * 2, bg)
    far = 4 * side * OVERSAMPLING
    ImageDraw.Draw(image).rounded_rectangle(
        (0, 0, far, far), radius * OVERSAMPLING, fill=fill, outline=line, width=line_width * OVERSAMPLING
    )
    return image.resize((side, side), Image.Resampling.LANCZOS)


def _draw_corner(radius: int, anchor: str, fill: str, line: str, bg: str) -> Image.Image:
    image = _upper_left(radius, fill, line, bg, 1)
    if "e" in anchor:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if "s" in anchor else image


def _draw_switch(width: int, height: int, is_on: bool, track: str, knob: str, bg: str, ring: str) -> Image.Image:
    n = OVERSAMPLING
    image = Image.new("RGB", (width * n, height * n), bg)
    pen = ImageDraw.Draw(image)
    w, h = width * n, height * n
    pen.rounded_rectangle((0, 0, w - 1, h - 1), h / 2, fill=ring)
    edge = 2 * n
    pen.rounded_rectangle((edge, edge, w - 1 - edge, h - 1 - edge), (h - 2 * edge) / 2, fill=track)
    gap = 4 * n
    left = w - h + gap if is_on else gap
    pen.ellipse((left, gap, left + h - 2 * gap - 1, h - gap - 1), fill=knob)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _draw_disc(size: int, fill: str, ring: str) -> Image.Image:
    """Transparent around the circle; its edge has the colour of the ring, not that of what is transparent."""
    n = OVERSAMPLING
    image, mask = Image.new("RGB", (size * n, size * n), ring), Image.new("L", (size * n, size * n), 0)
    last = size * n - 1
    ImageDraw.Draw(mask).ellipse((0, 0, last, last), fill=255)
    if ring != fill:
        ImageDraw.Draw(image).ellipse((2 * n, 2 * n, last - 2 * n, last - 2 * n), fill=fill)
    image.putalpha(mask)
    return image.resize((size, size), Image.Resampling.BOX)


_SHAPES: dict[str, Callable[..., Image.Image]] = {
    "rounded": _draw_rounded,
    "corner": _draw_corner,
    "switch": _draw_switch,
    "disc": _draw_disc,
}
