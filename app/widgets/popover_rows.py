"""The entries of a popover, drawn on one canvas."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from PIL import ImageTk

from app.widgets import icons, rounded_images, theme
from app.widgets.ellipsis import wrap
from app.widgets.text_width import text_width

_PAD: Final = 8  # around the entries; this and all sizes below in unscaled pixels
_SIDE: Final = 10  # inside an entry
_GUTTER: Final = 26  # of icons and ticks
_HEIGHT: Final = 30
_DETAIL_LINE: Final = 16
_SEPARATOR: Final = 9
_HEADING: Final = 28
_THUMB: Final = 3  # shows how far a long list is scrolled
_NARROWEST, _WIDEST, _DETAIL_WIDTH = 150, 460, 330
_RADIUS: Final = 8  # unscaled pixels


@dataclass(frozen=True)
class Row:
    """One entry of a popover, a heading, or a separator, which has no label. `words` are what a search finds it by."""

    label: str
    command: Callable[[], object] = lambda: None
    is_enabled: bool = True
    shortcut: str = ""
    detail: str = ""
    icon: str = ""
    is_chosen: bool = False
    is_heading: bool = False
    words: str = ""

    @property
    def is_separator(self) -> bool:
        return not self.label

    @property
    def can_be_chosen(self) -> bool:
        return self.is_enabled and not self.is_separator and not self.is_heading


class PopoverRows(tk.Canvas):
    """`extent` is the width and height that it takes, in pixels; more rows than `tallest` allows are scrolled.

    The upper `head` pixels stay free, for what does not scroll.
    """

    def __init__(
        self,
        parent: tk.Misc,
        rows: Sequence[Row],
        at_least: int,
        tallest: int,
        run: Callable[[Row], object],
        *,
        head: int = 0,
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, takefocus=1, yscrollincrement=1)
        self._rows = rows
        self._run = run
        self._head = head
        self._gutter = theme.px(_GUTTER) if any(row.icon or row.is_chosen for row in rows) else 0
        self._details = [wrap(self, row.detail, theme.tk_font("small"), theme.px(_DETAIL_WIDTH)) for row in rows]
        self._tops = self._heights()
        width = max(min(max(map(self._needed, range(len(rows))), default=0), theme.px(_WIDEST)), theme.px(_NARROWEST))
        pad = theme.px(_PAD)
        self._content = self._tops[-1] + pad
        self.extent = (max(width + 2 * pad, at_least), min(self._content, tallest))
        self.configure(width=self.extent[0], height=self.extent[1], scrollregion=(0, 0, self.extent[0], self._content))
        self._photos: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference
        self._corners: list[ImageTk.PhotoImage] = []
        self._thumb = self.create_line(0, 0, 0, 0, width=theme.px(_THUMB), capstyle="round", state="hidden")
        self._index = next((n for n, row in enumerate(rows) if row.is_chosen and row.can_be_chosen), -1)
        theme.paint(self, bg=theme.CARD)
        self._draw()
        self.bind("<Motion>", lambda event: self._point(event.y))
        self.bind("<ButtonRelease-1>", lambda event: self._click(event.y))
        self.bind("<MouseWheel>", lambda event: self._scroll(-1 if event.delta > 0 else 1))
        for button, by in ((4, -1), (5, 1)):
            self.bind(f"<Button-{button}>", lambda event, by=by: self._scroll(by))  # type: ignore[misc]
        self._see()

    @property
    def selected(self) -> Row | None:
        """The highlighted entry."""
        return self._rows[self._index] if self._index >= 0 else None

    def step(self, by: int, wraps: bool = True) -> None:
        """Highlight the entry that is `by` further; disabled ones are skipped."""
        able = [n for n, row in enumerate(self._rows) if row.can_be_chosen]
        if not able:
            return
        if self._index < 0:
            self._select(able[0 if by > 0 else -1])
            return
        place = able.index(self._index) + by
        self._select(able[place % len(able) if wraps else min(max(place, 0), len(able) - 1)])

    def select_end(self, which: int) -> None:
        """Highlight the first (1) or the last (-1) entry."""
        self._index = -1
        self.step(which)

    def select_start(self, word: str, after: bool = False) -> bool:
        """Highlight the first entry from the current one on (or `after` it) that starts with `word`.

        If no label does, what stands at the right counts, such as the name in files.
        """
        first = max(self._index, 0) + after
        order = [n for n in [*range(first, len(self._rows)), *range(first)] if self._rows[n].can_be_chosen]
        labels = [n for n in order if self._rows[n].label.lower().startswith(word)]
        for number in labels or [n for n in order if self._rows[n].shortcut.lower().startswith(word)]:
            self._select(number)
            return True
        return False

    def replace(self, rows: Sequence[Row]) -> None:
        """Show other rows in the same extent, and highlight the first of them that can be chosen."""
        self._rows = rows
        self._details = [wrap(self, row.detail, theme.tk_font("small"), theme.px(_DETAIL_WIDTH)) for row in rows]
        self._tops = self._heights()
        self._content = self._tops[-1] + theme.px(_PAD)
        self.configure(scrollregion=(0, 0, self.extent[0], max(self._content, self.extent[1])))
        self._scroll_to(0)
        self._index = next((number for number, row in enumerate(rows) if row.can_be_chosen), -1)
        self._draw()

    def draw_frame(self, x: int, y: int) -> None:
        """Draw the rounded border; the corners take the colours of what they lie over at (x, y) of the screen."""
        self._corners = draw_border(self, self.extent, x, y, int(self.canvasy(0)))  # it may open scrolled

    def _heights(self) -> list[int]:
        """The upper edge of each row, and the end of the last."""
        tops = [theme.px(_PAD) + self._head]
        for row, detail in zip(self._rows, self._details, strict=True):
            height = _HEIGHT + len(detail) * _DETAIL_LINE + 4 * bool(detail)
            height = _SEPARATOR if row.is_separator else _HEADING if row.is_heading else height
            tops.append(tops[-1] + theme.px(height))
        return tops

    def _needed(self, number: int) -> int:
        """The width of a row."""
        row, small = self._rows[number], theme.tk_font("small")
        shortcut = text_width(self, row.shortcut, small) + theme.px(28) if row.shortcut else 0
        label = text_width(self, row.label, theme.tk_font()) + shortcut
        details = [text_width(self, line, small) for line in self._details[number]]
        return self._gutter + 2 * theme.px(_SIDE) + max([label, *details])

    def _draw(self) -> None:
        self.delete("row")
        self._photos = []
        width, pad, side = self.extent[0], theme.px(_PAD), theme.px(_SIDE)
        for number, row in enumerate(self._rows):
            top, bottom = self._tops[number], self._tops[number + 1]
            if row.is_separator:
                middle = (top + bottom) // 2
                self.create_line(
                    pad + side, middle, width - pad - side, middle, fill=theme.resolve(theme.LINE), tags="row"
                )
                continue
            if row.is_heading:
                self._draw_heading(row.label, pad + side, bottom)
                continue
            if number == self._index:
                self._highlight(pad, top, width - 2 * pad, bottom - top)
            self._draw_row(row, self._details[number], pad + side, top, width - pad - side)
        self.tag_raise("frame")
        self._draw_thumb(int(self.canvasy(0)))

    def _draw_row(self, row: Row, detail: list[str], left: int, top: int, right: int) -> None:
        colours = (theme.TEXT, theme.MUTED) if row.is_enabled else (theme.FAINT, theme.FAINT)
        ink, muted = map(theme.resolve, colours)
        middle = top + theme.px(_HEIGHT) // 2 + (theme.px(2) if detail else 0)
        icon = row.icon or ("check" if row.is_chosen else "")
        if icon:
            photo = icons.image(icon, 16, theme.ACCENT_TEXT if row.is_chosen and not row.icon else colours[1])
            self._photos.append(photo)
            self.create_image(left, middle, anchor="w", image=photo, tags="row")
        font, small = theme.tk_font(), theme.tk_font("small")
        self.create_text(left + self._gutter, middle, anchor="w", text=row.label, fill=ink, font=font, tags="row")
        if row.shortcut:
            self.create_text(right, middle, anchor="e", text=row.shortcut, fill=muted, font=small, tags="row")
        for number, line in enumerate(detail):
            y = top + theme.px(_HEIGHT - 1 + number * _DETAIL_LINE + _DETAIL_LINE // 2)
            self.create_text(left + self._gutter, y, anchor="w", text=line, fill=muted, font=small, tags="row")

    def _draw_heading(self, title: str, left: int, bottom: int) -> None:
        ink = theme.resolve(theme.MUTED)
        font = theme.tk_font("strong")
        self.create_text(left, bottom - theme.px(3), anchor="sw", text=title, fill=ink, font=font, tags="row")

    def _highlight(self, x: int, y: int, width: int, height: int) -> None:
        soft, card = theme.resolve(theme.ACCENT_SOFT), theme.resolve(theme.CARD)
        photo = rounded_images.rounded(self, width, height, theme.px(theme.RADIUS), fill=soft, line=soft, bg=card)
        self._photos.append(photo)
        self.create_image(x, y, anchor="nw", image=photo, tags="row")

    def _select(self, number: int) -> None:
        if number != self._index:
            self._index = number
            self._draw()
        self._see()

    def _see(self) -> None:
        if self._index < 0 or self._content <= self.extent[1]:
            return
        top, bottom = self._tops[self._index] - theme.px(_PAD), self._tops[self._index + 1] + theme.px(_PAD)
        view = int(self.canvasy(0))
        if self._index == next((number for number, row in enumerate(self._rows) if row.can_be_chosen), 0):
            top = 0  # with the heading above it
        top -= self._head
        view = top if top < view else max(view, bottom - self.extent[1])
        self._scroll_to(view)

    def _scroll(self, steps: int) -> str:
        self._scroll_to(int(self.canvasy(0)) + steps * theme.px(2 * _HEIGHT))
        return "break"

    def _scroll_to(self, view: int) -> None:
        view = min(max(view, 0), max(self._content - self.extent[1], 0))
        self.move("frame", 0, view - int(self.canvasy(0)))  # the border stays where it is
        self.yview_moveto(view / max(self._content, 1))
        self._draw_thumb(view)

    def _draw_thumb(self, view: int) -> None:
        """At the right edge, if there are more entries than fit."""
        (width, height), pad = self.extent, theme.px(_PAD)
        if self._content <= height:
            self.itemconfigure(self._thumb, state="hidden")
            return
        x, per_pixel = width - pad // 2 - 1, (height - self._head - 2 * pad) / self._content
        top = view + self._head + pad + view * per_pixel
        self.coords(self._thumb, x, top, x, top + height * per_pixel)
        self.itemconfigure(self._thumb, fill=theme.resolve(theme.EDGE), state="normal")
        self.tag_raise(self._thumb)

    def _row_at(self, y: int) -> int:
        """The number of the entry at a height of the canvas; -1 if it cannot be chosen."""
        at = int(self.canvasy(y))
        return next(
            (
                number
                for number, row in enumerate(self._rows)
                if self._tops[number] <= at < self._tops[number + 1] and row.can_be_chosen
            ),
            -1,
        )

    def _point(self, y: int) -> None:
        number = self._row_at(y)
        if number >= 0 and number != self._index:
            self._index = number
            self._draw()

    def _click(self, y: int) -> None:
        if (number := self._row_at(y)) >= 0:
            self._run(self._rows[number])


def draw_border(canvas: tk.Canvas, extent: tuple[int, int], x: int, y: int, top: int = 0) -> list[ImageTk.PhotoImage]:
    """Draw it as items tagged "frame"; the corners take the colours of what they lie over at (x, y) of the screen.

    All in pixels; `top` is where the canvas is scrolled to. Returns the images, which the caller must keep referenced.
    """
    width, height = extent
    line, fill = theme.resolve(theme.EDGE), theme.resolve(theme.CARD)
    canvas.create_rectangle(0, top, width - 1, top + height - 1, outline=line, tags="frame")
    corners = []
    for anchor, at in {"nw": (0, 0), "ne": (width, 0), "sw": (0, height), "se": (width, height)}.items():
        under = _colour_at(canvas, x + min(at[0], width - 1), y + min(at[1], height - 1))
        corner = rounded_images.corner(canvas, theme.px(_RADIUS), anchor, fill=fill, line=line, bg=under)
        corners.append(corner)
        canvas.create_image(at[0], top + at[1], anchor=anchor, image=corner, tags="frame")
    return corners


def _colour_at(widget: tk.Misc, x: int, y: int) -> str:
    """The background of the widget at a place of the screen, or that of the window."""
    try:
        found = widget.winfo_containing(x, y)
        return str(found.cget("bg")) if found is not None else theme.resolve(theme.WINDOW)
    except (tk.TclError, KeyError, ValueError):  # a widget of Tk's own, or one without a background
        return theme.resolve(theme.WINDOW)
