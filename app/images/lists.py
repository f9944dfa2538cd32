"""Tags and bucket sizes of the images: a list and a histogram."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Final

from app.images.grid import NONE_FOUND
from app.widgets import theme
from app.widgets.buttons import text
from app.widgets.scrollbar import Scrollbar
from app.widgets.table import table

MOST_TAGS = 5000
_BAR = 22


_TAGS: Final = "Press Enter or double-click to show the images with this tag."
_NO_TAGS: Final = "No tags: no image has a caption yet."


class TagList(tk.Frame):
    """Every tag with its number of captions; `on_select` is called with the selected tag."""

    def __init__(self, parent: tk.Misc, on_select: Callable[[str], object]) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._hint = text(self, "", "small", colour=theme.MUTED)
        self._hint.pack(side="bottom", anchor="w", pady=(theme.px(8), 0))
        # a number that stands far from its tag, as on a wide screen, belongs to none
        self.table = table(self, {"tag": ("Tag", 400), "count": ("Captions", 100)}, ("count",), stretch=False)
        self.table.bind("<Return>", lambda _: self._select(on_select))
        self.table.bind("<Double-Button-1>", lambda _: self._select(on_select))

    def show(self, counts: Sequence[tuple[str, int]]) -> None:
        """Show tags with their counts, most frequent first."""
        self._hint.configure(text=_TAGS if counts else _NO_TAGS)
        self.table.delete(*self.table.get_children())
        for number, (tag, count) in enumerate(counts[:MOST_TAGS]):
            self.table.insert("", "end", iid=str(number), values=(tag, f"{count:,}"))

    def _select(self, on_select: Callable[[str], object]) -> None:
        for item in self.table.selection():
            on_select(str(self.table.item(item, "values")[0]))


class BucketHistogram(tk.Frame):
    """Number of training images per bucket size."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._buckets: Sequence[tuple[str, int]] = ()
        self.empty = NONE_FOUND  # what stands in place of the bars if there are none
        text(self, "Number of images per training size", "small", colour=theme.MUTED).pack(
            anchor="w", pady=(0, theme.px(8))
        )
        self._canvas = theme.paint(tk.Canvas(self, highlightthickness=0), bg=theme.CARD)
        bar = Scrollbar(self, self._canvas.yview)
        self._canvas.configure(yscrollcommand=bar.show)
        bar.pack(side="right", fill="y")
        self._canvas.pack(side="left", fill="both", expand=True)
        self._canvas.bind("<Configure>", lambda _: self.redraw())

    def show(self, buckets: Sequence[tuple[str, int]]) -> None:
        """Show pairs of "WxH" and number of images."""
        self._buckets = sorted(buckets, key=lambda bucket: -bucket[1])
        self.redraw()

    def redraw(self) -> None:
        """Draw the bars in the current size and colours."""
        canvas, row, left = self._canvas, theme.px(_BAR + theme.UNIT / 2), theme.px(120)
        canvas.delete("all")
        max_width = max(theme.px(80), canvas.winfo_width() - left - theme.px(90))
        highest = max((count for _, count in self._buckets), default=1)
        for number, (name, count) in enumerate(self._buckets):
            top, height = number * row, theme.px(_BAR)
            wide, _, high = name.partition("x")
            size = f"{wide} × {high}"
            middle = top + height // 2
            canvas.create_text(
                left - theme.px(12),
                middle,
                anchor="e",
                text=size,
                fill=theme.resolve(theme.TEXT),
                font=theme.tk_font("body"),
            )
            right = left + max(theme.px(3), max_width * count // highest)
            canvas.create_rectangle(left, top, right, top + height, fill=theme.resolve(theme.ACCENT), width=0)
            self._draw_shape(name, left + theme.px(4), top, height)
            label = theme.px(8) + right
            canvas.create_text(
                label,
                middle,
                anchor="w",
                text=f"{count:,}",
                fill=theme.resolve(theme.MUTED),
                font=theme.tk_font("body"),
            )
        if not self._buckets:
            canvas.create_text(
                theme.px(8), theme.px(20), anchor="w", text=self.empty, fill=theme.resolve(theme.MUTED),
                font=theme.tk_font("body"),
            )  # fmt: skip
        canvas.configure(scrollregion=(0, 0, 1, len(self._buckets) * row))

    def _draw_shape(self, name: str, left: int, top: int, height: int) -> None:
        """The bucket's shape as a small frame at the start of its bar."""
        width_text, _, height_text = name.partition("x")
        wide, high = int(width_text), int(height_text)
        scale = theme.px(_BAR - 10) / max(wide, high)
        w, h = max(2, wide * scale), max(2, high * scale)
        x, y = left + theme.px(2), top + (height - h) / 2
        self._canvas.create_rectangle(x, y, x + w, y + h, outline=theme.resolve(theme.ON_ACCENT), width=1)
