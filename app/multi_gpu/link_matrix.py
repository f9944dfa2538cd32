"""How the GPUs are wired to each other, as a coloured picture."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from app import look, texts
from app.controls import card, text, wrap_within
from modules.machine import Link
from modules.machine.links import MEANINGS

CELL = 46
# From the fast to the slow: colours of label beginnings.
_SPEEDS = (
    (("NV",), look.GOOD),
    (("PIX", "PXB"), look.ACCENT),
    (("PHB", "NODE"), look.WARN),
    (("SYS", "?"), look.BAD),
)


class LinkMatrix:
    """A card with one coloured cell for each pair of GPUs, and what the labels mean."""

    def __init__(self, parent: tk.Misc) -> None:
        self.frame = card(parent)
        self._links: Sequence[Link] = ()
        text(self.frame, texts.LINKS_TITLE, "heading").pack(
            anchor="w", padx=look.px(16), pady=(look.px(12), look.px(4))
        )
        self.canvas = tk.Canvas(self.frame, height=10, width=10, borderwidth=0, highlightthickness=0)
        self.canvas.pack(fill="x", padx=look.px(16))
        self._words = text(self.frame, font="small", colour=look.MUTED)
        wrap_within(self._words, self.frame)
        self._words.pack(fill="x", padx=look.px(16), pady=(look.px(4), look.px(12)))
        look.follow(self.canvas, "cells", self._draw)

    def show(self, links: Sequence[Link]) -> None:
        """The links of every pair."""
        self._links = links
        labels = sorted({link.label for link in links})
        told = [texts.LINK_MEANING.format(label=label, meaning=_meaning(label)) for label in labels]
        blocked = [link for link in links if link.peer_access is False]
        if blocked:
            told.append(texts.NO_PEER_ACCESS.format(first=blocked[0].first, second=blocked[0].second))
        self._words.configure(text="\n".join(told))
        self._draw()

    def _draw(self) -> None:
        canvas = self.canvas
        canvas.delete("all")
        canvas.configure(bg=look.now(look.CARD))
        numbers = sorted({number for link in self._links for number in (link.first, link.second)})
        cell, edge = look.px(CELL), look.px(3)
        canvas.configure(height=cell * (len(numbers) + 1) if numbers else 1)
        for place, number in enumerate(numbers, start=1):
            for x, y in ((place, 0), (0, place)):
                middle = x * cell + cell // 2, y * cell + cell // 2
                canvas.create_text(*middle, text=number, fill=look.now(look.MUTED), font=look.tk_font("strong"))
        for link in self._links:
            row, column = numbers.index(link.first) + 1, numbers.index(link.second) + 1
            for x, y in ((column, row), (row, column)):
                box = (x * cell + edge, y * cell + edge, (x + 1) * cell - edge, (y + 1) * cell - edge)
                canvas.create_rectangle(*box, fill=look.now(colour_of(link)), width=0)
                middle = x * cell + cell // 2, y * cell + cell // 2
                canvas.create_text(*middle, text=link.label, fill=look.now(look.CARD), font=look.tk_font("small"))


def colour_of(link: Link) -> look.Colour:
    """Green for NVLink, red for the way over another processor or without peer access."""
    if link.peer_access is False:
        return look.BAD
    return next(colour for names, colour in _SPEEDS if link.label.startswith(names) or names == ("SYS", "?"))


def _meaning(label: str) -> str:
    return MEANINGS["NV#"] if label.startswith("NV") else MEANINGS.get(label, MEANINGS["?"])
