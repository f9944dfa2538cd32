"""A grid of captioned images that draws only the visible ones."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from PIL import ImageTk

from app.monitor.tiles import TileLoader
from app.widgets import theme
from app.widgets.ellipsis import truncate
from app.widgets.scrollbar import Scrollbar
from modules.run.view.event_records import SampleFile

NO_SAMPLES: Final = "No samples yet.\nThey are generated at the interval set under Sampling, and when you press Sample."
SIDE: Final = 168  # unscaled pixels, at least
_LEAST: Final = 72  # in a row of a given length
_LARGEST: Final = 448
_STEP: Final = 16  # pixels: a window being resized need not read all images again at each of its sizes
_GAP: Final = 14
_CAPTION_HEIGHT: Final = 34
_POLL_MS: Final = 25
_MAX_PER_POLL: Final = 6  # images handed to Tk at a time, which takes a few milliseconds
_MAX_PHOTOS: Final = 160


class TileGrid(tk.Frame):
    """Arrow keys move the focus ring; Return or a click opens the image. `empty` is shown while there is none."""

    def __init__(self, parent: tk.Misc, opened: Callable[[SampleFile], object], empty: str = NO_SAMPLES) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._opened = opened
        self.empty = empty
        self._tiles = TileLoader()
        self._photos: OrderedDict[tuple[int, str, int], ImageTk.PhotoImage] = OrderedDict()
        self._items: Sequence[tuple[SampleFile, str]] = ()
        self._focused = 0
        self._row_length = 0
        self._top = 0
        self._poll_job = ""
        self.canvas = tk.Canvas(self, borderwidth=0, highlightthickness=0, takefocus=1)
        theme.paint(self.canvas, bg=theme.CARD)
        self.bar = Scrollbar(self, self._scroll)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.canvas.pack(fill="both", expand=True)
        self._listen()
        theme.follow(self.canvas, "tiles", self.draw)

    def show(self, items: Sequence[tuple[SampleFile, str]], *, keep_scroll: bool = False) -> None:
        """Show samples, each with its caption."""
        self._items = items
        if not keep_scroll:
            self._top = 0
        self._focused = min(self._focused, max(0, len(items) - 1))
        self._tiles.cancel_pending()
        self.draw()

    def set_row_length(self, images: int) -> None:
        """Show so many images side by side if there is room, however small they get; 0 for any number."""
        self._row_length = images
        self.draw()

    def clear(self) -> None:
        """Forget all images: those of another run may have the same names."""
        self._tiles.clear()
        self._photos.clear()

    def close(self) -> None:
        """Stop the image thread."""
        self._tiles.close()
        if self._poll_job:
            self.after_cancel(self._poll_job)

    @property
    def columns(self) -> int:
        """The fewest columns with which all images are in sight, or else as many as fit, unless rows are given."""
        if self._row_length:
            return min(
                self._row_length, max(1, (self.canvas.winfo_width() - theme.px(_GAP)) // theme.px(_LEAST + _GAP))
            )
        most = max(1, (self.canvas.winfo_width() - theme.px(_GAP)) // theme.px(SIDE + _GAP))
        for columns in range(1, min(most, len(self._items)) + 1):
            rows = -(-len(self._items) // columns)
            if rows * self._cell(columns)[1] + theme.px(_GAP) <= self.canvas.winfo_height():
                return columns
        return most

    def _cell(self, columns: int) -> tuple[int, int]:
        """Width and height in pixels of a cell with its gaps, if the columns fill the width."""
        width = (self.canvas.winfo_width() - theme.px(_GAP)) // columns
        least = _LEAST if self._row_length else SIDE
        width = max(theme.px(least + _GAP), min(width, theme.px(_LARGEST + _GAP)))
        return width, width + theme.px(_CAPTION_HEIGHT)

    @property
    def drawn(self) -> int:
        """Number of images drawn."""
        return len(self.canvas.find_withtag("image"))

    def draw(self) -> None:
        """Draw the visible images that are loaded; the others follow when they are ready."""
        canvas = self.canvas
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        columns = self.columns
        cell_w, cell_h = self._cell(columns)
        rows = -(-len(self._items) // columns)
        total = rows * cell_h + theme.px(_GAP)
        self._top = max(0, min(self._top, total - height))
        self.bar.show(self._top / max(1, total), min(1.0, (self._top + height) / max(1, total)))
        if not self._items:
            canvas.create_text(
                width / 2,
                height / 2,
                text=self.empty,
                width=max(1, width - 2 * theme.px(_GAP)),
                fill=theme.resolve(theme.FAINT),
                font=theme.tk_font(),
                justify="center",
            )
            return
        first = self._top // cell_h * columns
        last = min(len(self._items), ((self._top + height) // cell_h + 1) * columns)
        is_complete = True
        for index in range(first, last):
            x = theme.px(_GAP) + index % columns * cell_w
            y = theme.px(_GAP) + index // columns * cell_h - self._top
            is_complete &= self._draw_one(index, x, y, cell_w - theme.px(_GAP))
        if not is_complete and not self._poll_job:
            self._poll_job = self.after(_POLL_MS, self._poll)

    def _draw_one(self, index: int, x: int, y: int, side: int) -> bool:
        sample, caption = self._items[index]
        canvas, read = self.canvas, side // _STEP * _STEP
        tile = self._tiles.get(sample, read)
        if index == self._focused and self.focus_get() is canvas:
            edge = theme.px(3)
            canvas.create_rectangle(
                x - edge,
                y - edge,
                x + side + edge,
                y + side + edge,
                outline=theme.resolve(theme.ACCENT),
                width=theme.px(2),
            )
        if tile is None or tile.image is None:
            canvas.create_rectangle(x, y, x + side, y + side, fill=theme.resolve(theme.HOVER), width=0)
            if tile is not None:
                canvas.create_text(
                    x + side / 2,
                    y + side / 2,
                    text="unreadable",
                    fill=theme.resolve(theme.FAINT),
                    font=theme.tk_font("small"),
                )
        else:
            key = (sample.number, sample.file, read)
            photo = self._photos.get(key)
            if photo is None:
                photo = ImageTk.PhotoImage(tile.image)
                self._photos[key] = photo
                while len(self._photos) > _MAX_PHOTOS:
                    self._photos.popitem(last=False)
            self._photos.move_to_end(key)
            canvas.create_image(x + side / 2, y + side / 2, image=photo, tags="image")
        canvas.create_text(
            x, y + side + theme.px(5), anchor="nw", text=truncate(caption, side * 46 // theme.px(SIDE)), width=side,
            fill=theme.resolve(theme.MUTED), font=theme.tk_font("small"),
        )  # fmt: skip
        return tile is not None

    def _poll(self) -> None:
        self._poll_job = ""
        if self._tiles.poll(_MAX_PER_POLL):
            self.draw()
        elif self.winfo_viewable():
            self._poll_job = self.after(_POLL_MS, self._poll)

    def _listen(self) -> None:
        canvas = self.canvas
        canvas.bind("<Configure>", lambda event: self.draw())
        canvas.bind("<Button-4>", lambda event: self._move_view(-1))
        canvas.bind("<Button-5>", lambda event: self._move_view(1))
        canvas.bind("<MouseWheel>", lambda event: self._move_view(-1 if event.delta > 0 else 1))
        canvas.bind("<Button-1>", lambda event: self._click(event.x, event.y))
        canvas.bind("<Return>", lambda event: self._open())
        canvas.bind("<space>", lambda event: self._open())
        for key, by in (("<Left>", -1), ("<Right>", 1)):
            canvas.bind(key, lambda event, by=by: self._choose(self._focused + by))  # type: ignore[misc]
        canvas.bind("<Up>", lambda event: self._choose(self._focused - self.columns))
        canvas.bind("<Down>", lambda event: self._choose(self._focused + self.columns))
        canvas.bind("<Prior>", lambda event: self._move_view(-3))
        canvas.bind("<Next>", lambda event: self._move_view(3))
        for sequence in ("<FocusIn>", "<FocusOut>"):
            canvas.bind(sequence, lambda event: self.draw())

    def _choose(self, index: int) -> str:
        if 0 <= index < len(self._items):
            self._focused = index
            columns = self.columns
            cell = self._cell(columns)[1]
            row = index // columns
            height = self.canvas.winfo_height()
            self._top = min(max(self._top, (row + 1) * cell + theme.px(_GAP) - height), row * cell)
            self.draw()
        return "break"

    def _click(self, x: int, y: int) -> None:
        self.canvas.focus_set()
        columns = self.columns
        width, height = self._cell(columns)
        column, row = (x - theme.px(_GAP) // 2) // width, (y + self._top) // height
        index = row * columns + column
        if 0 <= column < columns and index < len(self._items):
            self._focused = index
            self._open()

    def _open(self) -> None:
        if self._items:
            self._opened(self._items[self._focused][0])

    def _move_view(self, steps: int) -> None:
        self._top += steps * theme.px(80)
        self._tiles.cancel_pending()
        self.draw()

    def _scroll(self, how: str, amount: str, unit: str = "") -> None:
        if how == "moveto":
            columns = self.columns
            rows = -(-len(self._items) // columns)
            self._top = round(float(amount) * (rows * self._cell(columns)[1] + theme.px(_GAP)))
            self.draw()
        else:
            self._move_view(int(float(amount)) * (5 if unit == "pages" else 1))
