"""A list of settings groups: its items drawn on one canvas, only those in sight."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import customtkinter as ctk

from app import icons, look, texts
from app.controls import Button, card, frame, text, then
from app.repair import new_item
from app.state import AppState

ROW = 48
HEIGHT = 5 * ROW + 8


@dataclass(frozen=True)
class Item:
    """How one item looks in the list."""

    title: str
    detail: str
    enabled: bool
    is_wrong: bool


class ItemList:
    """A card with the items, and buttons to add, copy, move and remove them."""

    def __init__(
        self,
        parent: tk.Misc,
        path: str,
        title: str,
        state: AppState,
        describe: Callable[[dict[str, object]], tuple[str, str]],
        chosen: Callable[[int], object],
    ) -> None:
        self.frame = card(parent)
        self.path = path
        self.selected = 0
        self._state = state
        self._describe = describe
        self._chosen = chosen
        self._items: list[Item] = []
        self._pictures: list[object] = []
        self._top = 0
        head = frame(self.frame)
        head.pack(fill="x", padx=look.px(16), pady=(look.px(12), look.px(8)))
        text(head, title, "heading").pack(side="left")
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
        self.add_button = Button(head, texts.LIST_ADD[path], self.add, icon="plus", on=look.CARD)
        self.add_button.pack(side="right", padx=8)
        body = frame(self.frame)
        body.pack(fill="both", expand=True, padx=look.px(8), pady=(0, look.px(8)))
        self.canvas = tk.Canvas(
            body, height=look.px(HEIGHT), width=10, borderwidth=0, highlightthickness=0, takefocus=1
        )
        self.bar = ctk.CTkScrollbar(
            body,
            command=self._scroll,
            width=12,
            bg_color=look.CARD,
            fg_color=look.CARD,
            button_color=look.PRESSED,
            button_hover_color=look.FIELD_LINE,
            border_spacing=3,
        )
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
            Item(*self._describe(item), item.get("enabled") is True, str(place) in wrong)
            for place, item in enumerate(self.items)
        ]
        if shown != self._items:
            self._items = shown
            if self.selected >= len(shown):
                self.select(max(len(shown) - 1, 0))
            self._draw()
        for button in self._buttons:
            button.configure(state="normal" if shown else "disabled")

    def select(self, place: int) -> None:
        """Choose an item, and bring it into sight."""
        self.selected = place
        rows = self._rows()
        self._top = min(max(self._top, place - rows + 1), place) if place >= 0 else 0
        self._chosen(place)
        self._draw()

    def add(self) -> None:
        """A fresh item behind the selected one."""
        self._insert(new_item(self.path))

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
        self._state.draft.set(f"{self.path}.{place}.enabled", not self._items[place].enabled)

    def _bind(self) -> None:
        canvas = self.canvas
        canvas.bind("<Configure>", lambda event: self._draw())
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
        place = self._top + event.y // look.px(ROW)
        if place < len(self._items):
            if event.x < look.px(40):
                self._toggle(place)
            self.select(place)

    def _rows(self) -> int:
        return max(self.canvas.winfo_height() // look.px(ROW), 1)

    def _recoloured(self) -> None:
        self.canvas.configure(bg=look.now(look.CARD))
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
                text=texts.LIST_EMPTY[self.path],
                justify="center",
                font=look.tk_font(),
                fill=look.now(look.MUTED),
                width=width - look.px(32),
            )
        for row, place in enumerate(range(self._top, min(self._top + self._rows() + 1, count))):
            self._draw_row(row * look.px(ROW), width, place)
        needed = count > self._rows()
        if needed:
            self.bar.set(self._top / count, min((self._top + self._rows()) / count, 1))
        if needed and not self.bar.winfo_manager():
            self.bar.pack(side="right", fill="y")
        elif not needed and self.bar.winfo_manager():
            self.bar.pack_forget()

    def _draw_row(self, y: int, width: int, place: int) -> None:
        canvas, item, height, px = self.canvas, self._items[place], look.px(ROW), look.px
        focused = canvas.focus_get() == canvas
        if place == self.selected:
            canvas.create_polygon(
                *_rounded(2, y + 2, width - 2, y + height - 2, px(look.RADIUS)),
                smooth=True,
                fill=look.now(look.ACCENT_SOFT),
                outline=look.now(look.ACCENT if focused else look.ACCENT_SOFT),
                width=2 if focused else 1,
            )
        box = (px(12), y + height // 2 - px(8), px(28), y + height // 2 + px(8))
        edge = look.ACCENT if item.enabled else look.FIELD_LINE
        fill = look.ACCENT if item.enabled else look.FIELD
        canvas.create_polygon(*_rounded(*box, px(4)), smooth=True, fill=look.now(fill), outline=look.now(edge))
        if item.enabled:
            self._picture("check", 14, look.ON_ACCENT, px(20), y + height // 2)
        colour = look.TEXT if item.enabled else look.FAINT
        room = width - px(40) - px(40 if item.is_wrong else 16)
        lines: tuple[tuple[str, look.FontName, look.Colour, int], ...] = (
            (item.title, "strong", colour, -9),
            (item.detail, "small", look.MUTED, 9),
        )
        for words, name, ink, dy in lines:
            font = look.tk_font(name)
            fitted = fit(canvas, words, font, room)
            y_middle = y + height // 2 + px(dy)
            canvas.create_text(px(40), y_middle, text=fitted, anchor="w", font=font, fill=look.now(ink))
        if item.is_wrong:
            self._picture("warning", 18, look.BAD, width - px(24), y + height // 2)

    def _picture(self, name: str, size: int, colour: look.Colour, x: int, y: int) -> None:
        picture = icons.image(name, size, colour)
        self._pictures.append(picture)
        self.canvas.create_image(x, y, image=picture)


def _rounded(x0: int, y0: int, x1: int, y1: int, r: int) -> list[int]:
    """The points of a smooth polygon with round corners."""
    return [
        x0 + r, y0, x0 + r, y0, x1 - r, y0, x1 - r, y0, x1, y0, x1, y0 + r, x1, y0 + r, x1, y1 - r, x1, y1 - r, x1, y1,
        x1 - r, y1, x1 - r, y1, x0 + r, y1, x0 + r, y1, x0, y1, x0, y1 - r, x0, y1 - r, x0, y0 + r, x0, y0 + r, x0, y0,
    ]  # fmt: skip


def fit(widget: tk.Misc, words: str, font: look.Font, room: int) -> str:
    """The words on one line, cut with an ellipsis where they do not fit."""
    line = " ".join(words.split())

    def width(part: str) -> int:
        return int(widget.tk.call("font", "measure", font, part))

    if width(line) <= room:
        return line
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if width(f"{line[:middle]}…") <= room else (low, middle - 1)
    return f"{line[:low].rstrip()}…"
