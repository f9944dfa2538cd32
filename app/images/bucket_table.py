"""The sizes that images are trained at, each with its images, and its samples and micro-batches of an epoch."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Final

from app.images.grid import NONE_FOUND
from app.widgets import theme
from app.widgets.buttons import text, wrap_within
from app.widgets.scrollbar import Scrollbar

_BAR: Final = 22  # this and all sizes below in unscaled pixels
_NAMES: Final = 120
_COLUMN: Final = 116
_SHORTEST: Final = 80  # bar, before columns are left out
_TITLE: Final = "Training sizes"
_SMALL: Final = (
    "Sizes that do not fill one (amber) are trained as well, but take longer: fewer sizes (Largest aspect ratio, Step "
    "of sizes) or a smaller batch avoid that."
)


class BucketTable(tk.Frame):
    """A bar for the images of each size, the most frequent first, and numbers beside it."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._buckets: Sequence[tuple[str, int, int]] = ()
        self._batch_size = 0
        self.empty = NONE_FOUND  # what stands in place of the bars if there are none
        self._hint = text(self, "", "small", colour=theme.MUTED)
        wrap_within(self._hint, self, 0)
        self._hint.pack(side="bottom", anchor="w", pady=(theme.px(theme.UNIT), 0))
        self._canvas = theme.paint(tk.Canvas(self, highlightthickness=0), bg=theme.CARD)
        bar = Scrollbar(self, self._canvas.yview)
        self._canvas.configure(yscrollcommand=bar.show)
        bar.pack(side="right", fill="y")
        self._canvas.pack(side="left", fill="both", expand=True)
        self._canvas.bind("<Configure>", lambda _: self.redraw())

    def show(self, buckets: Sequence[tuple[str, int, int]], batch_size: object) -> None:
        """Show "WxH", images and samples of an epoch of each; `batch_size` is the setting, which may be wrong."""
        size = int(batch_size) if str(batch_size).isdecimal() else 0  # type: ignore[call-overload]
        now = sorted(buckets, key=lambda bucket: -bucket[1]), size
        if now != (self._buckets, self._batch_size):
            self._buckets, self._batch_size = now
        said = []
        if uneven := [samples for *_, samples in now[0] if 1 < size < samples and samples % size]:
            full, rest = divmod(uneven[0], size)
            said.append(
                f"A micro-batch has images of one size: {full:,} + {rest:,} are {full:,} batches of {size:,} images "
                f"and one of {rest:,}, over all processes."
            )
        if size > 1 and any(samples < size for *_, samples in buckets):
            said.append(_SMALL)
        self._hint.configure(text=" ".join(said))
        self.redraw()

    def columns(self, room: int) -> dict[str, list[str]]:
        """The titles of the columns that have this room in pixels beside the bars, each with its texts."""
        found = {"Images": [f"{images:,}" for _, images, _ in self._buckets]}
        if any(images != samples for _, images, samples in self._buckets):
            found["Samples/epoch"] = [f"{samples:,}" for *_, samples in self._buckets]
        if self._batch_size > 1:
            found[f"Batches of {self._batch_size}"] = [_batches(each, self._batch_size) for *_, each in self._buckets]
        return dict(list(found.items())[: max(1, room // theme.px(_COLUMN))])

    def redraw(self) -> None:
        """Draw it in the current size and colours."""
        canvas, row, left, width = self._canvas, theme.px(_BAR + theme.UNIT / 2), theme.px(_NAMES), theme.px(_COLUMN)
        canvas.delete("all")
        if not self._buckets:
            self._text(theme.px(8), theme.px(20), self.empty, "w", theme.MUTED)
        else:
            columns = self.columns(canvas.winfo_width() - left - theme.px(_SHORTEST))
            longest = max(theme.px(_SHORTEST), canvas.winfo_width() - left - len(columns) * width - theme.px(12))
            self._text(left - theme.px(12), row // 2, _TITLE, "e", theme.MUTED)
            for number, title in enumerate(columns, start=1):
                self._text(left + longest + number * width, row // 2, title, "e", theme.MUTED)
            for number in range(len(self._buckets)):
                self._draw_row(number, (number + 1) * row, left, longest, list(columns.values()))
        canvas.configure(scrollregion=(0, 0, 1, (len(self._buckets) + 1) * row))

    def _draw_row(self, number: int, top: int, left: int, longest: int, columns: Sequence[Sequence[str]]) -> None:
        (name, images, samples), height = self._buckets[number], theme.px(_BAR)
        middle = top + height // 2
        self._text(left - theme.px(12), middle, name.replace("x", " × "), "e", theme.TEXT)
        length = max(theme.px(3), longest * images // self._buckets[0][1])
        fill = theme.resolve(theme.ACCENT)
        self._canvas.create_rectangle(left, top, left + length, top + height, fill=fill, width=0)
        self._draw_shape(name, left + theme.px(4), top, height)
        for place, texts in enumerate(columns, start=1):
            is_small = place == len(columns) > 1 and samples < self._batch_size
            x = left + longest + place * theme.px(_COLUMN)
            self._text(x, middle, texts[number], "e", theme.WARN if is_small else theme.TEXT)

    def _text(self, x: int, y: int, shown: str, anchor: str, colour: theme.Colour) -> None:
        font, fill = theme.tk_font("body"), theme.resolve(colour)
        self._canvas.create_text(x, y, text=shown, anchor=anchor, font=font, fill=fill)  # type: ignore[call-overload]

    def _draw_shape(self, name: str, left: int, top: int, height: int) -> None:
        """The size's shape as a small frame at the start of its bar."""
        wide, high, *_ = map(int, name.split("+")[0].split("x"))
        scale = theme.px(_BAR - 10) / max(wide, high)
        w, h = max(2, wide * scale), max(2, high * scale)
        x, y = left + theme.px(2), top + (height - h) / 2
        self._canvas.create_rectangle(x, y, x + w, y + h, outline=theme.resolve(theme.ON_ACCENT), width=1)


def _batches(samples: int, size: int) -> str:
    """Such as "6 + 3" for six batches and three samples; "3 of 8" for less than one."""
    full, rest = divmod(samples, size)
    if not full:
        return f"{rest:,} of {size:,}"
    return f"{full:,} + {rest:,}" if rest else f"{full:,}"
