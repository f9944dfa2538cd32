"""A grid of pictures with words below, of which only those in sight are drawn."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from PIL import ImageTk

from app import look, texts
from app.bar import Bar
from app.cut import cut
from app.monitor.tiles import Tiles
from app.run_facts import SampleFile

SIDE: Final = 168
_GAP: Final = 14
_WORDS: Final = 34
_PUMP_MS: Final = 25
_AT_ONCE: Final = 6  # pictures handed to Tk in one turn: a few milliseconds
_PHOTOS: Final = 160


class TileGrid(tk.Frame):
    """Arrow keys move a ring, Return or a click opens the picture."""

    def __init__(self, parent: tk.Misc, opened: Callable[[SampleFile], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.CARD)
        self._opened = opened
        self._tiles = Tiles()
        self._photos: OrderedDict[tuple[int, str], ImageTk.PhotoImage] = OrderedDict()
        self._items: Sequence[tuple[SampleFile, str]] = ()
        self._chosen = 0
        self._top = 0
        self._pump = ""
        self.canvas = tk.Canvas(self, borderwidth=0, highlightthickness=0, takefocus=1)
        look.paint(self.canvas, bg=look.CARD)
        self.bar = Bar(self, self._scroll)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.canvas.pack(fill="both", expand=True)
        self._listen()
        look.follow(self.canvas, "tiles", self.draw)

    def show(self, items: Sequence[tuple[SampleFile, str]], *, keep_place: bool = False) -> None:
        """Show these pictures, each with its words."""
        self._items = items
        if not keep_place:
            self._top = 0
        self._chosen = min(self._chosen, max(0, len(items) - 1))
        self._tiles.forget_wishes()
        self.draw()

    def close(self) -> None:
        """End the thread."""
        self._tiles.close()
        if self._pump:
            self.after_cancel(self._pump)

    @property
    def columns(self) -> int:
        """How many fit beside each other."""
        return max(1, (self.canvas.winfo_width() - look.px(_GAP)) // look.px(SIDE + _GAP))

    @property
    def drawn(self) -> int:
        """How many pictures are on the screen now."""
        return len(self.canvas.find_withtag("picture"))

    def draw(self) -> None:
        """All pictures in sight that are at hand; the others come as they are ready."""
        canvas = self.canvas
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        cell_w, cell_h = look.px(SIDE + _GAP), look.px(SIDE + _GAP + _WORDS)
        rows = -(-len(self._items) // self.columns)
        whole = rows * cell_h + look.px(_GAP)
        self._top = max(0, min(self._top, whole - height))
        self.bar.show(self._top / max(1, whole), min(1.0, (self._top + height) / max(1, whole)))
        if not self._items:
            canvas.create_text(
                width / 2,
                height / 2,
                text=texts.NO_SAMPLES_YET,
                fill=look.now(look.FAINT),
                font=look.tk_font(),
                justify="center",
            )
            return
        first = self._top // cell_h * self.columns
        last = min(len(self._items), ((self._top + height) // cell_h + 1) * self.columns)
        is_complete = True
        for place in range(first, last):
            x = look.px(_GAP) + place % self.columns * cell_w
            y = look.px(_GAP) + place // self.columns * cell_h - self._top
            is_complete &= self._draw_one(place, x, y)
        if not is_complete and not self._pump:
            self._pump = self.after(_PUMP_MS, self._take)

    def _draw_one(self, place: int, x: int, y: int) -> bool:
        sample, words = self._items[place]
        side, canvas = look.px(SIDE), self.canvas
        tile = self._tiles.get(sample, side)
        if place == self._chosen and self.focus_get() is canvas:
            edge = look.px(3)
            canvas.create_rectangle(
                x - edge, y - edge, x + side + edge, y + side + edge, outline=look.now(look.ACCENT), width=look.px(2)
            )
        if tile is None or tile.picture is None:
            canvas.create_rectangle(x, y, x + side, y + side, fill=look.now(look.HOVER), width=0)
            if tile is not None:
                canvas.create_text(
                    x + side / 2,
                    y + side / 2,
                    text=texts.NO_PICTURE,
                    fill=look.now(look.FAINT),
                    font=look.tk_font("small"),
                )
        else:
            key = (sample.number, sample.file)
            photo = self._photos.get(key)
            if photo is None or photo.width() > side or photo.height() > side:
                photo = ImageTk.PhotoImage(tile.picture)
                self._photos[key] = photo
                while len(self._photos) > _PHOTOS:
                    self._photos.popitem(last=False)
            self._photos.move_to_end(key)
            canvas.create_image(x + side / 2, y + side / 2, image=photo, tags="picture")
        canvas.create_text(
            x, y + side + look.px(5), anchor="nw", text=cut(words, 46), width=side, fill=look.now(look.MUTED),
            font=look.tk_font("small"),
        )  # fmt: skip
        return tile is not None

    def _take(self) -> None:
        self._pump = ""
        if self._tiles.take(_AT_ONCE):
            self.draw()
        elif self.winfo_viewable():
            self._pump = self.after(_PUMP_MS, self._take)

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
            canvas.bind(key, lambda event, by=by: self._choose(self._chosen + by))  # type: ignore[misc]
        canvas.bind("<Up>", lambda event: self._choose(self._chosen - self.columns))
        canvas.bind("<Down>", lambda event: self._choose(self._chosen + self.columns))
        canvas.bind("<Prior>", lambda event: self._move_view(-3))
        canvas.bind("<Next>", lambda event: self._move_view(3))
        for sequence in ("<FocusIn>", "<FocusOut>"):
            canvas.bind(sequence, lambda event: self.draw())

    def _choose(self, place: int) -> str:
        if 0 <= place < len(self._items):
            self._chosen = place
            cell = look.px(SIDE + _GAP + _WORDS)
            row = place // self.columns
            height = self.canvas.winfo_height()
            self._top = min(max(self._top, (row + 1) * cell + look.px(_GAP) - height), row * cell)
            self.draw()
        return "break"

    def _click(self, x: int, y: int) -> None:
        self.canvas.focus_set()
        column, row = (x - look.px(_GAP) // 2) // look.px(SIDE + _GAP), (y + self._top) // look.px(SIDE + _GAP + _WORDS)
        place = row * self.columns + column
        if 0 <= column < self.columns and place < len(self._items):
            self._chosen = place
            self._open()

    def _open(self) -> None:
        if self._items:
            self._opened(self._items[self._chosen][0])

    def _move_view(self, steps: int) -> None:
        self._top += steps * look.px(80)
        self._tiles.forget_wishes()
        self.draw()

    def _scroll(self, how: str, amount: str, unit: str = "") -> None:
        if how == "moveto":
            cell = look.px(SIDE + _GAP + _WORDS)
            self._top = round(float(amount) * (-(-len(self._items) // self.columns) * cell + look.px(_GAP)))
            self.draw()
        else:
            self._move_view(int(float(amount)) * (5 if unit == "pages" else 1))
