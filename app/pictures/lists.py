"""Tags, buckets and problems of the pictures: two lists and a histogram, drawn virtually."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from app import look, texts
from app.bar import Bar
from app.controls import text
from app.pictures.catalogue import Problem
from app.table import table

MOST_TAGS = 5000
_BAR = 22


class TagList(tk.Frame):
    """Every tag with its number of captions; a choice tells `chosen`."""

    def __init__(self, parent: tk.Misc, chosen: Callable[[str], object]) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        text(self, texts.TAG_HINT, "small", colour=look.MUTED).pack(side="bottom", anchor="w", pady=(look.px(8), 0))
        self.tree = table(self, {"tag": (texts.TAG, 480), "count": (texts.TAG_COUNT, 120)})
        self.tree.bind("<Return>", lambda _: self._choose(chosen))
        self.tree.bind("<Double-Button-1>", lambda _: self._choose(chosen))

    def show(self, counts: Sequence[tuple[str, int]]) -> None:
        """The most frequent first."""
        self.tree.delete(*self.tree.get_children())
        for number, (tag, count) in enumerate(counts[:MOST_TAGS]):
            self.tree.insert("", "end", iid=str(number), values=(tag, count))

    def _choose(self, chosen: Callable[[str], object]) -> None:
        for item in self.tree.selection():
            chosen(str(self.tree.item(item, "values")[0]))


class ProblemList(tk.Frame):
    """What is wrong with which file; a choice tells `chosen`."""

    def __init__(self, parent: tk.Misc, chosen: Callable[[Problem], object]) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        self._problems: Sequence[Problem] = ()
        columns = {"kind": (texts.PROBLEM_KIND, 130), "file": (texts.PROBLEM_FILE, 300), "what": (texts.PROBLEM, 480)}
        self._hint = text(self, texts.NO_PROBLEMS, "small", colour=look.MUTED)
        self._hint.pack(side="bottom", anchor="w", pady=(look.px(8), 0))
        self.tree = table(self, columns)
        self.tree.bind("<Return>", lambda _: self._choose(chosen))
        self.tree.bind("<Double-Button-1>", lambda _: self._choose(chosen))

    def show(self, problems: Sequence[Problem]) -> None:
        """All of them, in the order of the folders."""
        self._problems = problems
        self._hint.configure(text=texts.PROBLEM_HINT if problems else texts.NO_PROBLEMS)
        self.tree.delete(*self.tree.get_children())
        for number, each in enumerate(problems):
            kind = texts.PROBLEM_KINDS.get(each.kind, each.kind)
            self.tree.insert("", "end", iid=str(number), values=(kind, each.file.name, each.what))

    def _choose(self, chosen: Callable[[Problem], object]) -> None:
        for item in self.tree.selection():
            chosen(self._problems[int(item)])


class Histogram(tk.Frame):
    """How many pictures are trained in which size."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        self._buckets: Sequence[tuple[str, int]] = ()
        text(self, texts.BUCKET_HINT, "small", colour=look.MUTED).pack(anchor="w", pady=(0, look.px(8)))
        self._canvas = look.paint(tk.Canvas(self, highlightthickness=0), bg=look.CARD)
        bar = Bar(self, self._canvas.yview)
        self._canvas.configure(yscrollcommand=bar.show)
        bar.pack(side="right", fill="y")
        self._canvas.pack(side="left", fill="both", expand=True)
        self._canvas.bind("<Configure>", lambda _: self.redraw())

    def show(self, buckets: Sequence[tuple[str, int]]) -> None:
        """Pairs of "WxH" and the number of pictures."""
        self._buckets = sorted(buckets, key=lambda bucket: -bucket[1])
        self.redraw()

    def redraw(self) -> None:
        """Draw the bars in the present size and colours."""
        canvas, row, left = self._canvas, look.px(_BAR + look.UNIT / 2), look.px(120)
        canvas.delete("all")
        room = max(look.px(80), canvas.winfo_width() - left - look.px(90))
        highest = max((count for _, count in self._buckets), default=1)
        for number, (name, count) in enumerate(self._buckets):
            top, height = number * row, look.px(_BAR)
            wide, _, high = name.partition("x")
            size = texts.PICTURE_SIZE.format(width=wide, height=high)
            middle = top + height // 2
            canvas.create_text(
                left - look.px(12), middle, anchor="e", text=size, fill=look.now(look.TEXT), font=look.tk_font("body")
            )
            right = left + max(look.px(3), room * count // highest)
            canvas.create_rectangle(left, top, right, top + height, fill=look.now(look.ACCENT), width=0)
            self._draw_shape(name, left + look.px(4), top, height)
            words = look.px(8) + right
            canvas.create_text(
                words, middle, anchor="w", text=f"{count:,}", fill=look.now(look.MUTED), font=look.tk_font("body")
            )
        if not self._buckets:
            canvas.create_text(
                look.px(8), look.px(20), anchor="w", text=texts.NO_PICTURES, fill=look.now(look.MUTED),
                font=look.tk_font("body"),
            )  # fmt: skip
        canvas.configure(scrollregion=(0, 0, 1, len(self._buckets) * row))

    def _draw_shape(self, name: str, left: int, top: int, height: int) -> None:
        """The bucket's shape as a small frame at the beginning of its bar."""
        width_text, _, height_text = name.partition("x")
        wide, high = int(width_text), int(height_text)
        scale = look.px(_BAR - 10) / max(wide, high)
        w, h = max(2, wide * scale), max(2, high * scale)
        x, y = left + look.px(2), top + (height - h) / 2
        self._canvas.create_rectangle(x, y, x + w, y + h, outline=look.now(look.ON_ACCENT), width=1)
