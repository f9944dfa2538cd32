"""The GPU interconnect as a coloured matrix."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from app.widgets import theme
from app.widgets.buttons import card, text, wrap_within
from modules.machine import Link
from modules.machine.links import LINK_MEANINGS

CELL = 46
# From fast to slow: label prefixes and their colour.
_SPEEDS = (
    (("NV",), theme.GOOD),
    (("PIX", "PXB"), theme.ACCENT),
    (("PHB", "NODE"), theme.WARN),
    (("SYS", "?"), theme.BAD),
)


class LinkMatrix:
    """A card with a coloured cell per pair of GPUs, and a legend."""

    def __init__(self, parent: tk.Misc) -> None:
        self.frame = card(parent)
        self._links: Sequence[Link] = ()
        text(self.frame, "GPU interconnect", "heading").pack(
            anchor="w", padx=theme.px(16), pady=(theme.px(12), theme.px(4))
        )
        self.canvas = tk.Canvas(self.frame, height=10, width=10, borderwidth=0, highlightthickness=0)
        self.canvas.pack(fill="x", padx=theme.px(16))
        self._legend = text(self.frame, font="small", colour=theme.MUTED)
        wrap_within(self._legend, self.frame)
        self._legend.pack(fill="x", padx=theme.px(16), pady=(theme.px(4), theme.px(12)))
        theme.follow(self.canvas, "cells", self._draw)

    def show(self, links: Sequence[Link]) -> None:
        """Show the links of all pairs."""
        self._links = links
        labels = sorted({link.label for link in links})
        lines = [f"{label}: {_meaning(label)}." for label in labels]
        blocked = [link for link in links if link.peer_access is False]
        if blocked:
            lines.append(
                f"GPU {blocked[0].first} and GPU {blocked[0].second} have no peer-to-peer access; transfers go "
                "through host memory."
            )
        self._legend.configure(text="\n".join(lines))
        self._draw()

    def _draw(self) -> None:
        canvas = self.canvas
        canvas.delete("all")
        canvas.configure(bg=theme.resolve(theme.CARD))
        numbers = sorted({number for link in self._links for number in (link.first, link.second)})
        cell, edge = theme.px(CELL), theme.px(3)
        canvas.configure(height=cell * (len(numbers) + 1) if numbers else 1)
        for position, number in enumerate(numbers, start=1):
            for x, y in ((position, 0), (0, position)):
                middle = x * cell + cell // 2, y * cell + cell // 2
                canvas.create_text(*middle, text=number, fill=theme.resolve(theme.MUTED), font=theme.tk_font("strong"))
        for link in self._links:
            row, column = numbers.index(link.first) + 1, numbers.index(link.second) + 1
            for x, y in ((column, row), (row, column)):
                box = (x * cell + edge, y * cell + edge, (x + 1) * cell - edge, (y + 1) * cell - edge)
                canvas.create_rectangle(*box, fill=theme.resolve(colour_of(link)), width=0)
                middle = x * cell + cell // 2, y * cell + cell // 2
                canvas.create_text(
                    *middle, text=link.label, fill=theme.resolve(theme.CARD), font=theme.tk_font("small")
                )


def colour_of(link: Link) -> theme.Colour:
    """From green for NVLink to red for links across CPUs or without peer access."""
    if link.peer_access is False:
        return theme.BAD
    return next(colour for names, colour in _SPEEDS if link.label.startswith(names) or names == ("SYS", "?"))


def _meaning(label: str) -> str:
    return LINK_MEANINGS["NV#"] if label.startswith("NV") else LINK_MEANINGS.get(label, LINK_MEANINGS["?"])
