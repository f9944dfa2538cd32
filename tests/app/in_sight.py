"""What can be seen of the window's widgets, and where."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from app.widgets.button import Button
from app.widgets.inputs.box import Box

Area = tuple[int, int, int, int]  # left, top, right and bottom on the screen


def inside(widget: tk.Misc) -> Iterator[Any]:
    for child in widget.winfo_children():
        if child.winfo_viewable() and not isinstance(child, tk.Toplevel):
            yield child
            yield from inside(child)


def place(widget: tk.Misc) -> Area:
    left, top = widget.winfo_rootx(), widget.winfo_rooty()
    return left, top, left + widget.winfo_width(), top + widget.winfo_height()


def in_sight(widget: tk.Misc) -> Area | None:
    """The part of a widget that no parent cuts off."""
    area: Area | None = place(widget)
    parent = widget.master
    while area is not None and parent is not None and parent.winfo_class() != "Tk":
        area, parent = common(area, place(parent)), parent.master
    return area


def common(one: Area, other: Area) -> Area | None:
    left, top, right, bottom = *map(max, one[:2], other[:2]), *map(min, one[2:], other[2:])
    return (left, top, right, bottom) if right - left > 4 and bottom - top > 4 else None


def overlapping(window: tk.Misc) -> list[tuple[str, str]]:
    """Labels, buttons and fields that lie over one another."""
    shown = [(each, in_sight(each)) for each in inside(window) if isinstance(each, Box) or has_text(each)]
    pairs = combinations([(each, area) for each, area in shown if area is not None], 2)
    return [
        (name_of(one), name_of(other))
        for (one, area), (other, its_area) in pairs
        if common(area, its_area) and not f"{other}.".startswith(f"{one}.") and not f"{one}.".startswith(f"{other}.")
    ]


def has_text(widget: tk.Misc) -> bool:
    is_placeholder = isinstance(widget.master, tk.Entry)  # which lies in its field
    return isinstance(widget, (tk.Label, Button)) and bool(str(widget.cget("text"))) and not is_placeholder


def name_of(widget: tk.Misc) -> str:
    return str(widget.cget("text")) if has_text(widget) else str(widget)
