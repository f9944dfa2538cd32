"""Words that are longer than the room for them."""

from __future__ import annotations

import tkinter as tk

from app import look


def cut(words: str, most: int) -> str:
    """At most so many letters, the last of them an ellipsis where some are missing."""
    return words if len(words) <= most else f"{words[: most - 1].rstrip()}…"


def fit(widget: tk.Misc, words: str, font: look.Font, room: int, *, at_start: bool = False) -> str:
    """The words on one line, cut with an ellipsis at the end (or the start) where they do not fit."""
    line = " ".join(words.split())

    def cut(length: int) -> str:
        return f"…{line[len(line) - length :].lstrip()}" if at_start else f"{line[:length].rstrip()}…"

    def width(part: str) -> int:
        return int(widget.tk.call("font", "measure", font, part))

    if width(line) <= room:
        return line
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if width(cut(middle)) <= room else (low, middle - 1)
    return cut(low)
