"""A list of setting groups, drawn as rows on one canvas; only visible rows are drawn."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image, ImageTk

from app.form.item_row import COVER, GAP, ItemContent, RowState, draw_row, is_on_switch
from app.images.thumbnails import Thumbnails
from app.repair import new_item
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, handler, text
from app.widgets.scrollbar import Scrollbar

ROW = 50
TALL_ROW = 74  # with a cover image
MAX_VISIBLE = 4  # rows; more scroll
_POLL_MS = 80


@dataclass(frozen=True)
class ItemListSpec:
    """What a list shows: its path in the config, the switch of its items, and how an item is described."""

    path: str
    switch: str
    title: str
    add: str  # text of the button that adds an item
    empty: str  # shown while there are no items
    describe: Callable[[dict[str, object]], ItemContent]
    thumbnails: Thumbnails | None = None  # for the cover images
    fill: Callable[[dict[str, object]], dict[str, object]] = dict  # adds initial values to a new item
    choose: Callable[[], dict[str, object] | None] = (
        dict  # asks for values of an item that the button adds; None: do not
    )
    added: Callable[[], object] = lambda: None  # called after the button has added an item


class ItemList:
    """A card with the items and buttons to add, copy, move and remove them."""

    def __init__(self, parent: tk.Misc, spec: ItemListSpec, state: AppState, chosen: Callable[[int], object]) -> None:
        self.frame = card(parent)
        self.path = spec.path
        self.selected = 0
        self._spec = spec
        self._state = state
        self._chosen = chosen
        self._empty = spec.empty
        self._can_add = True
        self._items: list[tuple[ItemContent, bool, bool]] = []  # content, is on, is invalid
        self._images: list[object] = []
        self._covers: dict[Path, ImageTk.PhotoImage] = {}
        self._missing: list[Path] = []  # visible covers that are still being made
        self._polling = ""
        self._row = theme.px(ROW if spec.thumbnails is None else TALL_ROW)
        self._top = 0
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), theme.px(8)))
        text(head, spec.title, "heading").pack(side="left")
        self._buttons = [
            Button(head, icon=icon, style="quiet", bg=theme.CARD, tooltip=tooltip, command=command, width=30)
            for icon, tooltip, command in (
                ("trash", "Remove (Delete)", self.remove),
                ("down", "Move down (Alt+Down)", lambda: self.move(1)),
                ("up", "Move up (Alt+Up)", lambda: self.move(-1)),
                ("copy", "Duplicate (Ctrl+D)", self.copy),
            )
        ]
        for button in self._buttons:
            button.pack(side="right")
        self.add_button = Button(head, spec.add, self._add_chosen, icon="plus", bg=theme.CARD)
        self.add_button.pack(side="right", padx=8)
        body = frame(self.frame)
        body.pack(fill="both", expand=True, padx=theme.px(16), pady=(0, theme.px(14)))
        self.canvas = tk.Canvas(body, width=10, borderwidth=0, highlightthickness=0, takefocus=1)
        self.bar = Scrollbar(body, self._scroll)
        self.canvas.pack(side="left", fill="both", expand=True)
        self._bind()
        theme.follow(self.canvas, "rows", self._theme_changed)

    @property
    def items(self) -> list[dict[str, object]]:
        """The items in the draft."""
        value = self._state.draft.get(self.path)
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def refresh(self) -> None:
        """Update the list from the draft."""
        invalid = {
            fault.path.split(".")[1] for fault in self._state.draft.faults if fault.path.startswith(f"{self.path}.")
        }
        shown = [
            (self._spec.describe(item), item.get(self._spec.switch) is True, str(index) in invalid)
            for index, item in enumerate(self.items)
        ]
        if shown != self._items:
            self._items = shown
            self._make_room()
            if self.selected >= len(shown):
                self.select(max(len(shown) - 1, 0))
            self._draw()
        for button in self._buttons:
            button.configure(state="normal" if shown else "disabled")

    def set_empty_text(self, empty: str, *, can_add: bool) -> None:
        """Set the text for the empty list, and whether items can be added."""
        self._can_add = can_add
        self.add_button.configure(state="normal" if can_add else "disabled")
        if empty != self._empty:
            self._empty = empty
            self._draw()

    def select(self, index: int) -> None:
        """Select an item and scroll to it."""
        self.selected = index
        rows = self._rows()
        self._top = min(max(self._top, index - rows + 1), index) if index >= 0 else 0
        self._chosen(index)
        self._draw()

    def add(self) -> None:
        """Insert a new item after the selected one."""
        if self._can_add:
            self._insert(self._spec.fill(new_item(self.path)))

    def _add_chosen(self) -> None:
        """What the button does: ask first, where there is something to choose."""
        if self._can_add and (values := self._spec.choose()) is not None:
            self._insert({**self._spec.fill(new_item(self.path)), **values})
            self._spec.added()

    def copy(self) -> None:
        """Insert a copy of the selected item after it."""
        if self.items:
            self._insert(dict(self.items[self.selected]))

    def remove(self) -> None:
        """Remove the selected item."""
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
        index = self.selected + 1 if self.items else 0
        self._state.draft.insert(self.path, index, item)
        self.select(index)

    def _toggle(self, index: int) -> None:
        self._state.draft.set(f"{self.path}.{index}.{self._spec.switch}", not self._items[index][1])

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
            canvas.bind(key, handler(action))
        for wheel, by in (("<Button-4>", -1), ("<Button-5>", 1)):
            canvas.bind(wheel, partial(self._turned, by))
        canvas.bind("<MouseWheel>", lambda event: self._turned(-1 if event.delta > 0 else 1, event))

    def _step(self, by: int) -> None:
        if self._items:
            self.select(min(max(self.selected + by, 0), len(self._items) - 1))

    def _turned(self, by: int, event: object) -> str | None:
        if len(self._items) <= self._rows():
            return None  # let the page scroll instead
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
        index = self._top + event.y // (self._row + theme.px(GAP))
        if index < len(self._items):
            if is_on_switch(event.x, self.canvas.winfo_width()):
                self._toggle(index)
            self.select(index)

    def _rows(self) -> int:
        return max((self.canvas.winfo_height() + theme.px(GAP)) // (self._row + theme.px(GAP)), 1)

    def _theme_changed(self) -> None:
        self.canvas.configure(bg=theme.resolve(theme.CARD))
        self._make_room()
        self._draw()

    def _draw(self) -> None:
        canvas = self.canvas
        canvas.delete("all")
        self._images.clear()
        width, count = canvas.winfo_width(), len(self._items)
        if not count:
            canvas.create_text(
                width // 2,
                canvas.winfo_height() // 2,
                text=self._empty,
                justify="center",
                font=theme.tk_font(),
                fill=theme.resolve(theme.MUTED),
                width=width - theme.px(32),
            )
        focused = canvas.focus_get() == canvas
        self._missing = []
        for row, index in enumerate(range(self._top, min(self._top + self._rows() + 1, count))):
            item, is_on, is_invalid = self._items[index]
            state = RowState(is_on, is_invalid, index == self.selected, focused)
            photo = self._cover(item.cover)
            top, covers = row * (self._row + theme.px(GAP)), self._spec.thumbnails is not None
            self._images += draw_row(canvas, item, state, top, self._row, covers=covers, photo=photo)
        self._show_bar(count)
        if self._missing and not self._polling:
            self._polling = canvas.after(_POLL_MS, self._poll_covers)

    def _show_bar(self, count: int) -> None:
        needed = count > self._rows()
        if needed:
            self.bar.show(self._top / count, min((self._top + self._rows()) / count, 1))
        if needed and not self.bar.winfo_manager():
            self.bar.pack(side="right", fill="y", padx=(4, 0))
        elif not needed and self.bar.winfo_manager():
            self.bar.pack_forget()

    def _make_room(self) -> None:
        """Fit the height to the number of rows, up to MAX_VISIBLE."""
        rows = min(len(self._items) or 2, MAX_VISIBLE)  # two for the text of an empty list
        self.canvas.configure(height=rows * (self._row + theme.px(GAP)) - theme.px(GAP))

    def _cover(self, file: Path | None) -> ImageTk.PhotoImage | None:
        """The cover image once it is made, else None."""
        thumbnails = self._spec.thumbnails
        if file is None or thumbnails is None:
            return None
        if file not in self._covers and (image := thumbnails.get(file)) is not None:
            self._covers[file] = ImageTk.PhotoImage(_square(image, theme.px(COVER)), master=self.canvas)
        elif file not in self._covers and not thumbnails.is_broken(file):
            self._missing.append(file)
        return self._covers.get(file)

    def _poll_covers(self) -> None:
        """Redraw when covers have been made."""
        self._polling = ""
        thumbnails = self._spec.thumbnails
        assert thumbnails is not None
        thumbnails.poll(lambda file: None)
        if any(thumbnails.is_done(file) for file in self._missing):
            self._draw()
        elif self._missing:
            for file in self._missing:  # another page may have cancelled them
                thumbnails.get(file)
            self._polling = self.canvas.after(_POLL_MS, self._poll_covers)

    def _ended(self) -> None:
        if self._polling:
            self.canvas.after_cancel(self._polling)


def _square(image: Image.Image, side: int) -> Image.Image:
    """The centre square of an image, resized to `side` pixels."""
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    return image.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.LANCZOS)
