"""Tags, problems and bucket sizes of the images: two lists and a histogram."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Final

from app.images.grid import NONE_FOUND
from app.images.image_index import ImageProblem
from app.widgets import theme
from app.widgets.buttons import Button, frame, text
from app.widgets.scrollbar import Scrollbar
from app.widgets.table import table

MOST_TAGS = 5000
_BAR = 22


_TAGS: Final = "Press Enter or double-click to show the images with this tag."
_NO_TAGS: Final = "No tags: no image has a caption yet."
_ANNOTATE: Final = (
    "Have captions, tags or masks proposed for the folder of the selected image, or the first without a caption"
)
_KINDS: Final = {"broken": "unreadable", "caption": "no caption", "tiny": "too small", "duplicate": "duplicate"}


class TagList(tk.Frame):
    """Every tag with its number of captions; `on_select` is called with the selected tag."""

    def __init__(self, parent: tk.Misc, on_select: Callable[[str], object]) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._hint = text(self, "", "small", colour=theme.MUTED)
        self._hint.pack(side="bottom", anchor="w", pady=(theme.px(8), 0))
        self.table = table(self, {"tag": ("Tag", 480), "count": ("Captions", 120)}, ("count",))
        self.table.bind("<Return>", lambda _: self._select(on_select))
        self.table.bind("<Double-Button-1>", lambda _: self._select(on_select))

    def show(self, counts: Sequence[tuple[str, int]]) -> None:
        """Show tags with their counts, most frequent first."""
        self._hint.configure(text=_TAGS if counts else _NO_TAGS)
        self.table.delete(*self.table.get_children())
        for number, (tag, count) in enumerate(counts[:MOST_TAGS]):
            self.table.insert("", "end", iid=str(number), values=(tag, count))

    def _select(self, on_select: Callable[[str], object]) -> None:
        for item in self.table.selection():
            on_select(str(self.table.item(item, "values")[0]))


class ProblemList(tk.Frame):
    """Problems by file; `on_select` is called with the selected one."""

    def __init__(self, parent: tk.Misc, on_select: Callable[[ImageProblem], object]) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._problems: Sequence[ImageProblem] = ()
        columns = {"kind": ("Type", 130), "file": ("File", 300), "what": ("Problem", 480)}
        foot = frame(self)
        foot.pack(side="bottom", fill="x", pady=(theme.px(8), 0))
        self._hint = text(foot, "", "small", colour=theme.MUTED)
        self._hint.pack(side="left")
        self.annotate = Button(
            foot, "Write captions", lambda: self.event_generate("<<Annotate>>"), bg=theme.CARD, tooltip=_ANNOTATE
        )
        self.table = table(self, columns)
        self.table.bind("<Return>", lambda _: self._select(on_select))
        self.table.bind("<Double-Button-1>", lambda _: self._select(on_select))

    def show(self, problems: Sequence[ImageProblem], *, is_reading: bool, was_read: bool) -> None:
        """Show all problems, in folder order; while the files are being read there may be more.

        `was_read`: there are images, and every folder could be read.
        """
        self._problems = problems
        known = "Press Enter or double-click to show the image." if problems else ""
        open_end = "The files are still being read…" if is_reading else ""
        self.table.say("No problems found." if was_read and not is_reading and not problems else "")
        self._hint.configure(text="  ".join(filter(None, [known, open_end])))
        self.table.delete(*self.table.get_children())
        for number, each in enumerate(problems):
            kind = _KINDS.get(each.kind, each.kind)
            self.table.insert("", "end", iid=str(number), values=(kind, each.file.name, each.description))
        if self.to_caption() is None:
            self.annotate.pack_forget()
        else:
            self.annotate.pack(side="right")

    def to_caption(self) -> ImageProblem | None:
        """The selected problem, else the first image without a caption; None if every image has one."""
        selected = [self._problems[int(item)] for item in self.table.selection()]
        uncaptioned = [each for each in self._problems if each.kind == "caption"]
        return next(iter(selected + uncaptioned), None) if uncaptioned else None

    def _select(self, on_select: Callable[[ImageProblem], object]) -> None:
        for item in self.table.selection():
            on_select(self._problems[int(item)])


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
