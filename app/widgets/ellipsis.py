"""Shortens text with an ellipsis."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Sequence
from typing import Final, Literal

from app.widgets import theme
from app.widgets.text_width import text_width
from modules.files import visible

Cut = Literal["start", "middle", "end"]

_LONGEST: Final = 2000  # characters that are wrapped: more are never in sight


def truncate(text: str, max_length: int) -> str:
    """Truncate to `max_length` characters, with an ellipsis if anything was cut."""
    return text if len(text) <= max_length else f"{text[: max_length - 1].rstrip()}…"


def fit(widget: tk.Misc, text: str, font: theme.Font, room: int, *, cut: Cut = "end") -> str:
    """The text on one line, shortened with an ellipsis at its `cut` to fit `room` pixels."""
    line = visible(" ".join(text.split()))

    def shortened(length: int) -> str:
        kept = {"start": length, "middle": length // 2, "end": 0}[cut]
        return f"{line[: length - kept].rstrip()}…{line[len(line) - kept :].lstrip()}"

    def width(part: str) -> int:
        return text_width(widget, part, font)

    if width(line) <= room:
        return line
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if width(shortened(middle)) <= room else (low, middle - 1)
    return shortened(low)


def fit_parts(widget: tk.Misc, parts: Sequence[str], font: theme.Font, room: int) -> str:
    """The parts with dots between them, without the last ones if there is no room for all."""
    tried = (" · ".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((said for said in tried if text_width(widget, said, font) <= room), fit(widget, parts[0], font, room))


def fit_lines(widget: tk.Misc, text: str, font: theme.Font, room: int, most: int) -> str:
    """The text in at most `most` lines of `room` pixels, the last one shortened with an ellipsis if need be."""
    lines = wrap(widget, text, font, room)
    if len(lines) > most:
        lines[most - 1 :] = [" ".join(lines[most - 1 :])]
    return "\n".join(fit(widget, line, font, room) for line in lines)


def wrap(widget: tk.Misc, text: str, font: theme.Font, room: int) -> list[str]:
    """The text in lines of `room` pixels, broken between words, not at a no-break space; a longer word makes its line
    wider."""
    lines: list[str] = []
    for paragraph in text[:_LONGEST].splitlines():
        line = ""
        for word in re.split(r"[ \t]+", paragraph.strip(" \t")):
            longer = f"{line} {word}".lstrip()
            if line and text_width(widget, longer, font) > room:
                lines.append(line)
                line = word
            else:
                line = longer
        lines.append(line)
    return lines
