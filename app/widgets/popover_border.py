"""The round border of what lies over the window: popovers and the list of the search."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from PIL import ImageTk

from app.widgets import rounded_images, theme

_RADIUS: Final = 8  # unscaled pixels


def draw_border(canvas: tk.Canvas, extent: tuple[int, int], x: int, y: int, top: int = 0) -> list[ImageTk.PhotoImage]:
    """Draw it as items tagged "frame"; the corners take the colours of what they lie over at (x, y) of the screen.

    All in pixels; `top` is where the canvas is scrolled to. Returns the images, which the caller must keep referenced.
    """
    width, height = extent
    line, fill = theme.resolve(theme.EDGE), theme.resolve(theme.CARD)
    canvas.create_rectangle(0, top, width - 1, top + height - 1, outline=line, tags="frame")
    corners = []
    for anchor, at in {"nw": (0, 0), "ne": (width, 0), "sw": (0, height), "se": (width, height)}.items():
        under = _colour_at(canvas, x + min(at[0], width - 1), y + min(at[1], height - 1))
        corner = rounded_images.corner(canvas, theme.px(_RADIUS), anchor, fill=fill, line=line, bg=under)
        corners.append(corner)
        canvas.create_image(at[0], top + at[1], anchor=anchor, image=corner, tags="frame")
    return corners


def _colour_at(widget: tk.Misc, x: int, y: int) -> str:
    """The background of the widget at a place of the screen, or that of the window."""
    try:
        found = widget.winfo_containing(x, y)
        return str(found.cget("bg")) if found is not None else theme.resolve(theme.WINDOW)
    except (tk.TclError, KeyError, ValueError):  # a widget of Tk's own, or one without a background
        return theme.resolve(theme.WINDOW)
