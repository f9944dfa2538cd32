"""A list of settings groups: its items drawn as cards on one canvas, only those in sight."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image, ImageTk

from app import look, texts
from app.bar import Bar
from app.controls import Button, card, frame, text, then
from app.form.item_row import COVER, GAP, Item, Marks, draw, is_on_switch
from app.pictures.thumbnails import Thumbnails
from app.repair import new_item
from app.state import AppState

ROW = 50
TALL_ROW = 74  # with a cover
MOST = 4  # cards for which there is room; the others scroll
_POLL_MS = 80


@dataclass(frozen=True)
class Kind:
    """What a list holds: where it is in the config, the switch of its items, and what it says of one."""

    path: str
    switch: str
    describe: Callable[[dict[str, object]], Item]
    thumbnails: Thumbnails | None = None  # of the covers
    fill: Callable[[dict[str, object]], dict[str, object]] = dict  # what a fresh item begins with


class ItemList:
    """A card with the items, and buttons to add, copy, move and remove them."""

    def __init__(self, parent: tk.Misc, kind: Kind, state: AppState, chosen: Callable[[int], object]) -> None:
        self.frame = card(parent)
        self.path = kind.path
        self.selected = 0
        self._kind = kind
        self._state = state
        self._chosen = chosen
        self._empty = texts.LIST_EMPTY[self.path]
        self._can_add = True
        self._items: list[tuple[Item, bool, bool]] = []  # with whether it is on, and whether it is wrong
        self._pictures: list[object] = []
        self._covers: dict[Path, ImageTk.PhotoImage] = {}
        self._missing: list[Path] = []  # covers in sight that are being made
        self._polling = ""
        self._row = look.px(ROW if kind.thumbnails is None else TALL_ROW)
        self._top = 0
        head = frame(self.frame)
        head.pack(fill="x", padx=look.px(16), pady=(look.px(12), look.px(8)))
        text(head, texts.LIST_TITLES[self.path], "heading").pack(side="left")
        self._buttons = [
            Button(head, icon=icon, style="quiet", on=look.CARD, hint=hint, command=command, width=30)
            for icon, hint, command in (
                ("trash", texts.ITEM_REMOVE, self.remove),
                ("down", texts.ITEM_DOWN, lambda: self.move(1)),
                ("up", texts.ITEM_UP, lambda: self.move(-1)),
                ("copy", texts.ITEM_COPY, self.copy),
            )
        ]
        for button in self._buttons:
            button.pack(side="right")
        self.add_button = Button(head, texts.LIST_ADD[self.path], self.add, icon="plus", on=look.CARD)
        self.add_button.pack(side="right", padx=8)
        body = frame(self.frame)
        body.pack(fill="both", expand=True, padx=look.px(12), pady=(0, look.px(10)))
        self.canvas = tk.Canvas(body, width=10, borderwidth=0, highlightthickness=0, takefocus=1)
        self.bar = Bar(body, self._scroll)
        self.canvas.pack(side="left", fill="both", expand=True)
        self._bind()
        look.follow(self.canvas, "rows", self._recoloured)

    @property
    def items(self) -> list[dict[str, object]]:
        """The items as they stand in the draft."""
        value = self._state.draft.get(self.path)
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def refresh(self) -> None:
        """Show what the draft says."""
        wrong = {
            fault.path.split(".")[1] for fault in self._state.draft.faults if fault.path.startswith(f"{self.path}.")
        }
        shown = [
            (self._kind.describe(item), item.get(self._kind.switch) is True, str(place) in wrong)
            for place, item in enumerate(self.items)
        ]
        if shown != self._items:
            self._items = shown
            self._make_room()
            if self.selected >= len(shown):
                self.select(max(len(shown) - 1, 0))
            self._draw()
        for button in self._buttons:
            button.configure(state="normal" if shown else "disabled")

    def offer(self, empty: str, *, can_add: bool) -> None:
        """Other words for the empty list, and whether items can be added to it."""
        self._can_add = can_add
        self.add_button.configure(state="normal" if can_add else "disabled")
        if empty != self._empty:
            self._empty = empty
            self._draw()

    def select(self, place: int) -> None:
        """Choose an item, and bring it into sight."""
        self.selected = place
        rows = self._rows()
        self._top = min(max(self._top, place - rows + 1), place) if place >= 0 else 0
        self._chosen(place)
        self._draw()

    def add(self) -> None:
        """A fresh item behind the selected one."""
        if self._can_add:
            self._insert(self._kind.fill(new_item(self.path)))

    def copy(self) -> None:
        """A copy of the selected item behind it."""
        if self.items:
            self._insert(dict(self.items[self.selected]))

    def remove(self) -> None:
        """Take the selected item out."""
        if self.items:
            self._state.draft.remove(self.path, self.selected)

    def move(self, by: int) -> None:
        """Move the selected item up or down."""
        to = self.selected + by
        if 0 <= to < len(self.items):
            self.selected = to
            self._state.draft.move(self.path, to - by, to)
            self.select(to)

    def _insert(self, item: dict[str, object]) -> None:
        place = self.selected + 1 if self.items else 0
        self._state.draft.insert(self.path, place, item)
        self.select(place)

    def _toggle(self, place: int) -> None:
        self._state.draft.set(f"{self.path}.{place}.{self._kind.switch}", not self._items[place][1])

    def _bind(self) -> None:
        canvas = self.canvas
        canvas.bind("<Configure>", lambda event: self._draw())
        canvas.bind("<Destroy>", lambda event: self._ended())
        canvas.bind("<Button-1>", self._clicked)
        canvas.bind("<FocusIn>", lambda event: self._draw())
        canvas.bind("<FocusOut>", lambda event: self._draw())
        for key, action in {
            "<Up>": lambda: self._step(-1),
            "<Down>": lambda: self._step(1),
            "<Home>": lambda: self._step(-len(self._items)),
            "<End>": lambda: self._step(len(self._items)),
            "<space>": lambda: self._toggle(self.selected) if self._items else None,
            "<Insert>": self.add,
            "<Delete>": self.remove,
            "<Control-d>": self.copy,
            "<Alt-Up>": lambda: self.move(-1),
            "<Alt-Down>": lambda: self.move(1),
        }.items():
            canvas.bind(key, then(action))
        for wheel, by in (("<Button-4>", -1), ("<Button-5>", 1)):
            canvas.bind(wheel, partial(self._turned, by))
        canvas.bind("<MouseWheel>", lambda event: self._turned(-1 if event.delta > 0 else 1, event))

    def _step(self, by: int) -> None:
        if self._items:
            self.select(min(max(self.selected + by, 0), len(self._items) - 1))

    def _turned(self, by: int, event: object) -> str | None:
        if len(self._items) <= self._rows():
            return None  # the page scrolls instead
        self._top = min(max(self._top + by, 0), len(self._items) - self._rows())
        self._draw()
        return "break"

    def _scroll(self, *how: str) -> None:
        count = len(self._items)
        if how[0] == "moveto":
            self._top = round(float(how[1]) * count)
        else:
            self._top += int(float(how[1]))
        self._top = min(max(self._top, 0), max(count - self._rows(), 0))
        self._draw()

    def _clicked(self, event: tk.Event[tk.Canvas]) -> None:
        self.canvas.focus_set()
        place = self._top + event.y // (self._row + look.px(GAP))
        if place < len(self._items):
            if is_on_switch(event.x, self.canvas.winfo_width()):
                self._toggle(place)
            self.select(place)

    def _rows(self) -> int:
        return max((self.canvas.winfo_height() + look.px(GAP)) // (self._row + look.px(GAP)), 1)

    def _recoloured(self) -> None:
        self.canvas.configure(bg=look.now(look.CARD))
        self._make_room()
        self._draw()

    def _draw(self) -> None:
        canvas = self.canvas
        canvas.delete("all")
        self._pictures.clear()
        width, count = canvas.winfo_width(), len(self._items)
        if not count:
            canvas.create_text(
                width // 2,
                canvas.winfo_height() // 2,
                text=self._empty,
                justify="center",
                font=look.tk_font(),
                fill=look.now(look.MUTED),
                width=width - look.px(32),
            )
        focused = canvas.focus_get() == canvas
        self._missing = []
        for row, place in enumerate(range(self._top, min(self._top + self._rows() + 1, count))):
            item, is_on, is_wrong = self._items[place]
            marks = Marks(is_on, is_wrong, place == self.selected, focused)
            photo = self._cover(item.cover)
            top, covers = row * (self._row + look.px(GAP)), self._kind.thumbnails is not None
            self._pictures += draw(canvas, item, marks, top, self._row, covers=covers, photo=photo)
        self._show_bar(count)
        if self._missing and not self._polling:
            self._polling = canvas.after(_POLL_MS, self._look_for_covers)

    def _show_bar(self, count: int) -> None:
        needed = count > self._rows()
        if needed:
            self.bar.show(self._top / count, min((self._top + self._rows()) / count, 1))
        if needed and not self.bar.winfo_manager():
            self.bar.pack(side="right", fill="y", padx=(4, 0))
        elif not needed and self.bar.winfo_manager():
            self.bar.pack_forget()

    def _make_room(self) -> None:
        """As many cards as there are, within limits: what stands below moves no more than it must."""
        rows = min(len(self._items) or 2, MOST)  # two for the words that stand in an empty list
        self.canvas.configure(height=rows * (self._row + look.px(GAP)) - look.px(GAP))

    def _cover(self, file: Path | None) -> ImageTk.PhotoImage | None:
        """The cover, once it is made."""
        thumbnails = self._kind.thumbnails
        if file is None or thumbnails is None:
            return None
        if file not in self._covers and (picture := thumbnails.get(file)) is not None:
            self._covers[file] = ImageTk.PhotoImage(_square(picture, look.px(COVER)), master=self.canvas)
        elif file not in self._covers and not thumbnails.is_broken(file):
            self._missing.append(file)
        return self._covers.get(file)

    def _look_for_covers(self) -> None:
        """Draw covers that have become ready."""
        self._polling = ""
        thumbnails = self._kind.thumbnails
        assert thumbnails is not None
        thumbnails.poll(lambda file: None)
        if any(thumbnails.has(file) for file in self._missing):
            self._draw()
        elif self._missing:
            for file in self._missing:  # another page may have forgotten that they are wanted
                thumbnails.get(file)
            self._polling = self.canvas.after(_POLL_MS, self._look_for_covers)

    def _ended(self) -> None:
        if self._polling:
            self.canvas.after_cancel(self._polling)


def _square(picture: Image.Image, side: int) -> Image.Image:
    """The middle of a picture."""
    edge = min(picture.size)
    left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
    return picture.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.LANCZOS)
