"""A popover with a line above its entries: what is typed there filters them."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Sequence
from typing import ClassVar, Final

from app.widgets import icons, theme
from app.widgets.inputs import Entry
from app.widgets.popover import PopupMenu
from app.widgets.popover_rows import Row

_SIDE: Final = 8  # unscaled pixels


class SearchedMenu(PopupMenu):
    """Like its base, but letters go into the line, which `placeholder` explains while it is empty."""

    head: ClassVar[int] = 40

    def __init__(self, parent: tk.Misc, placeholder: str) -> None:
        super().__init__(parent)
        self._placeholder = placeholder

    def _add_head(self) -> tk.Misc:
        side, rows = theme.px(_SIDE), self._drawn
        head = theme.paint(tk.Frame(rows, borderwidth=0, highlightthickness=0), bg=theme.CARD)
        entry = Entry(head, self._filter, placeholder=self._placeholder, indent=20)
        entry.pack(fill="x", pady=(side, 0))
        icon = icons.label(head, "search", 15, theme.MUTED, theme.FIELD)
        icon.place(in_=entry, x=theme.px(9), rely=0.5, anchor="w")
        # inside the border; the entries scroll below it
        head.place(x=side, y=1, width=rows.extent[0] - 2 * side, height=theme.px(self.head) + side)
        return entry.line

    def _filter(self, query: str) -> None:
        self._drawn.replace(matching(self.rows, query))


def matching(rows: Sequence[Row], query: str) -> list[Row]:
    """The entries with all words of the query, below their headings; all rows without one."""
    words = query.lower().split()
    if not words:
        return list(rows)
    patterns = [_pattern(word, is_whole=place < len(words)) for place, word in enumerate(words, 1)]
    found: list[Row] = []
    heading: Row | None = None
    for row in rows:
        if row.is_heading or row.is_separator:
            heading = row if row.is_heading else None
        elif all(re.search(pattern, _text(row, heading)) for pattern in patterns):
            if heading is not None and heading not in found:
                found.append(heading)
            found.append(row)
    return found or [Row("Nothing found", is_enabled=False)]


def _pattern(word: str, *, is_whole: bool) -> str:
    """What finds it in a text: 12 not in 512, and, if more is not going to be typed, not in 121 either."""
    before = r"(?<![0-9])" if word[:1].isdecimal() else ""
    after = r"(?![0-9])" if is_whole and word[-1:].isdecimal() else ""
    return f"{before}{re.escape(word)}{after}"


def _text(row: Row, heading: Row | None) -> str:
    title = "" if heading is None else heading.label
    return " ".join((row.label, row.detail, row.shortcut, row.words, title)).replace("\xa0", " ").lower()
