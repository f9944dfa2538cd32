"""A grid of captioned images that draws only the visible ones."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

from PIL import Image, ImageTk

from app.monitor.tile_lines import GAP, Block, Line, bottom_of, lines_of
from app.monitor.tiles import TileLoader
from app.widgets import theme
from app.widgets.ellipsis import fit_lines
from app.widgets.scrollbar import Scrollbar
from modules.run.view.event_records import SampleFile

NO_SAMPLES: Final = "No samples yet.\nThey are generated at the interval set under Sampling, and when you press Sample."
_STEP: Final = 16  # pixels: a window being resized need not read all images again at each of its sizes
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
        self._marked = ""
        self.best: Collection[str] = ()  # files that have a green frame
        self._blocks: Sequence[Block] = ()
        self._lines: list[Line] = []
        self._lines_key: object = None  # what they were made for
        self._top = 0
        self._poll_job = ""
        self.canvas = tk.Canvas(self, borderwidth=0, highlightthickness=0, takefocus=1)
        theme.paint(self.canvas, bg=theme.CARD)
        self.bar = Scrollbar(self, self._scroll)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.canvas.pack(fill="both", expand=True)
        self._listen()
        theme.follow(self.canvas, "tiles", self.draw)

    def show(
        self, items: Sequence[tuple[SampleFile, str]], *, keep_scroll: bool = False, blocks: Sequence[Block] = ()
    ) -> None:
        """Show samples, each with its caption; all in one block unless `blocks` are given.

        A block has empty places if its samples are fewer.
        """
        self._items, self._blocks = items, tuple(blocks) or (Block(len(items)),)
        if not keep_scroll:
            self._top = 0
        self._focused = min(self._focused, max(0, len(items) - 1))
        self._tiles.cancel_pending()
        self.draw()

    def mark(self, file: str) -> None:
        """Frame an image and bring it into sight; the frame goes when another one is clicked."""
        self._marked = file
        self._choose(next((index for index, (sample, _) in enumerate(self._items) if sample.file == file), -1))

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
    def lines(self) -> list[Line]:
        """Where the images stand."""
        size = self.canvas.winfo_width(), self.canvas.winfo_height()
        key = (size, theme.scale(), self._blocks)
        if key != self._lines_key:  # thousands take some milliseconds
            self._lines_key, self._lines = key, lines_of(self._blocks, *size)
        return self._lines

    @property
    def drawn(self) -> int:
        """Number of images drawn."""
        return len(self.canvas.find_withtag("image"))

    def draw(self) -> None:
        """Draw the visible images that are loaded; the others follow when they are ready."""
        canvas = self.canvas
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        lines = self.lines
        total = bottom_of(lines)
        self._top = max(0, min(self._top, total - height))
        self.bar.show(self._top / max(1, total), min(1.0, (self._top + height) / max(1, total)))
        if not self._items:
            canvas.create_text(
                width / 2,
                height / 2,
                text=self.empty,
                width=max(1, width - 2 * theme.px(GAP)),
                fill=theme.resolve(theme.FAINT),
                font=theme.tk_font(),
                justify="center",
            )
            return
        is_complete = True
        for line in lines:
            if self._top - line.height < line.top < self._top + height:
                for place in range(line.count):
                    x = theme.px(GAP) + place * line.width
                    side = line.width - theme.px(GAP)
                    is_complete &= self._draw_one(line.first + place, x, line.top - self._top, side)
        if not is_complete and not self._poll_job:
            self._poll_job = self.after(_POLL_MS, self._poll)

    def _draw_one(self, index: int, x: int, y: int, side: int) -> bool:
        canvas, side = self.canvas, side // _STEP * _STEP
        if index >= len(self._items):  # the place of one that is still to come
            canvas.create_rectangle(x, y, x + side, y + side, fill=theme.resolve(theme.HOVER), width=0)
            return True
        sample, caption = self._items[index]
        tile = self._tiles.get(sample, side)
        left, top, right, bottom = x, y, x + side, y + side
        if tile is None or tile.image is None:
            canvas.create_rectangle(left, top, right, bottom, fill=theme.resolve(theme.HOVER), width=0)
            if tile is not None:
                canvas.create_text(
                    x + side / 2,
                    y + side / 2,
                    text="unreadable",
                    fill=theme.resolve(theme.FAINT),
                    font=theme.tk_font("small"),
                )
        else:
            photo = self._photo(sample, side, tile.image)
            # each begins at the left and at the top, as its caption does
            right, bottom = left + photo.width(), top + photo.height()
            canvas.create_image(left, top, anchor="nw", image=photo, tags="image")
        if sample.file in self.best:
            canvas.create_rectangle(left, top, right, bottom, outline=theme.resolve(theme.GOOD), width=theme.px(3))
        if sample.file == self._marked or (index == self._focused and self.focus_get() is canvas):
            edge = theme.px(3)
            corners = left - edge, top - edge, right + edge, bottom + edge
            canvas.create_rectangle(*corners, outline=theme.resolve(theme.ACCENT), width=theme.px(2))
        small = theme.tk_font("small")
        canvas.create_text(
            x, bottom + theme.px(5), anchor="nw", text=fit_lines(canvas, caption, small, side, 2),
            fill=theme.resolve(theme.MUTED), font=small,
        )  # fmt: skip
        return tile is not None

    def _photo(self, sample: SampleFile, side: int, image: Image.Image) -> ImageTk.PhotoImage:
        key = (sample.number, sample.file, side)
        if key not in self._photos:
            self._photos[key] = ImageTk.PhotoImage(image)
            while len(self._photos) > _MAX_PHOTOS:
                self._photos.popitem(last=False)
        self._photos.move_to_end(key)
        return self._photos[key]

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
        for key, by in (("<Up>", -1), ("<Down>", 1)):
            canvas.bind(key, lambda event, by=by: self._choose_beyond(by))  # type: ignore[misc]
        canvas.bind("<Prior>", lambda event: self._move_view(-3))
        canvas.bind("<Next>", lambda event: self._move_view(3))
        for sequence in ("<FocusIn>", "<FocusOut>"):
            canvas.bind(sequence, lambda event: self.draw())

    def _choose(self, index: int) -> str:
        if 0 <= index < len(self._items):
            self._focused = index
            line = next(line for line in self.lines if index < line.first + line.count)
            height = self.canvas.winfo_height()
            self._top = min(max(self._top, line.top + line.height - height), line.top - theme.px(GAP))
            self.draw()
        return "break"

    def _choose_beyond(self, by: int) -> str:
        """The image in the line above or below, or the last one of a shorter line."""
        lines = self.lines
        at = next((number for number, line in enumerate(lines) if self._focused < line.first + line.count), -1)
        if at < 0 or not 0 <= at + by < len(lines):
            return "break"
        return self._choose(lines[at + by].first + min(self._focused - lines[at].first, lines[at + by].count - 1))

    def _click(self, x: int, y: int) -> None:
        self.canvas.focus_set()
        for line in self.lines:
            place = (x - theme.px(GAP) // 2) // line.width
            count = min(line.count, len(self._items) - line.first)
            if 0 <= y + self._top - line.top < line.height and 0 <= place < count:
                self._focused, self._marked = line.first + place, ""
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
            self._top = round(float(amount) * bottom_of(self.lines))
            self.draw()
        else:
            self._move_view(int(float(amount)) * (5 if unit == "pages" else 1))
