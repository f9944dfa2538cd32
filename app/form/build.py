"""From declarations to fields, and fields into cards in one column or two."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app import look
from app.controls import card, text
from app.form.field import CONTROL_WIDTH, MESSAGE_HEIGHT, Field, control_room
from app.form.interval import IntervalField
from app.form.line import NumberField, NumbersField, TextField
from app.form.long_text import ItemsField, LongTextField, MappingField
from app.form.menu import MenuField
from app.form.path import PathField
from app.form.slider import SliderField, is_natural
from app.form.switch import SwitchField
from app.form.words import reason
from app.state import AppState
from modules.config import Option

TWO_COLUMNS_FROM = 800  # unscaled pixels of the form's width
GAP = 16

_KINDS: dict[str, type[Field]] = {
    "text": TextField,
    "integer": NumberField,
    "number": NumberField,
    "switch": SwitchField,
    "choice": MenuField,
    "interval": IntervalField,
    "integers": NumbersField,
    "numbers": NumbersField,
    "mapping": MappingField,
    "list": ItemsField,
}


def field_class(option: Option) -> type[Field]:
    """The kind of field for a setting."""
    if option.picks == "long_text":
        return LongTextField
    if option.picks in ("file", "folder"):
        return PathField
    return SliderField if is_natural(option) else _KINDS[option.type]


@dataclass(frozen=True)
class Card:
    """Which settings stand together, in reading order, and in which column when there is room for two."""

    title: str
    paths: tuple[str, ...]
    column: int = 0


class FieldCard:
    """A card of fields. Each is built when it is first seen; one that does not apply leaves no gap."""

    def __init__(
        self,
        parent: tk.Misc,
        title: str,
        options: Sequence[Option],
        state: AppState,
        make: Callable[[Option], type[Field]] = field_class,
    ) -> None:
        self.frame = card(parent)
        self.options = list(options)
        self.index = 0
        self.fields: dict[tuple[str, str | None], Field] = {}
        self._state = state
        self._make = make
        self._visible: list[Option] = []
        self._reason = ""
        self._width = 0
        self.frame.grid_columnconfigure(0, weight=1)
        self.frame.grid_columnconfigure(1, minsize=look.px(CONTROL_WIDTH))
        self.frame.grid_columnconfigure(2, minsize=look.px(34))
        self.heading = text(self.frame, title, "heading")
        self.heading.grid(row=0, column=0, columnspan=3, sticky="w", padx=look.px(16), pady=(look.px(12), look.px(4)))
        self._told = text(self.frame, "", "small", colour=look.MUTED)
        self._told.grid(
            row=0, column=1, columnspan=2, sticky="e", padx=(0, look.px(16)), pady=(look.px(12), look.px(4))
        )
        self.frame.grid_rowconfigure(1, minsize=look.px(8))
        tk.Misc.bind(self.frame, "<Configure>", self._resized, add="+")

    def arrange(self, wanted: Callable[[Option], bool]) -> bool:
        """Show the options that are wanted; returns whether there is any."""
        visible = [option for option in self.options if wanted(option)]
        if visible == self._visible:
            return bool(visible)
        for option in self._visible:
            if option not in visible:
                self.fields[option.path, option.variant].remove()
        self._visible = visible
        self.frame.grid_rowconfigure(2 * len(visible) + 2, minsize=look.px(6))
        for row, option in enumerate(visible, start=1):
            field = self._field(option)
            field.grid(row)
            field.area.lift()  # the focus follows this order, too
            self.frame.grid_rowconfigure(2 * row, minsize=look.px(look.CONTROL_HEIGHT))
            self.frame.grid_rowconfigure(2 * row + 1, minsize=look.px(MESSAGE_HEIGHT))
        return bool(visible)

    def refresh(self) -> None:
        """Show what the draft says."""
        self._reason = self._common_reason()
        if self._told.cget("text") != self._reason:
            self._told.configure(text=self._reason)
        for option in self._visible:
            self.fields[option.path, option.variant].refresh()

    def offer(self, title: str, options: Sequence[Option]) -> None:
        """Other options under another title; the fields of the former ones are gone for good."""
        for field in self.fields.values():
            field.destroy()
        self.fields.clear()
        self._visible = []
        self.options = list(options)
        self.heading.configure(text=title)

    def find(self, path: str) -> Field | None:
        """The visible field of a path, or the one that a part of it (betas.1) belongs to."""
        for option in self._visible:
            field = self.fields[option.path, option.variant]
            if path == field.path or path.startswith(f"{field.path}."):
                return field
        return None

    def visible_fields(self) -> Iterable[Field]:
        return (self.fields[option.path, option.variant] for option in self._visible)

    def reason_told_above(self, reason: str) -> bool:
        """Whether the card's own line says already why the setting does nothing."""
        return reason == self._reason

    def _field(self, option: Option) -> Field:
        key = (option.path, option.variant)
        if key not in self.fields:
            self.fields[key] = self._make(option)(self.frame, option, self._state, self)
            if self._width:
                self.fields[key].wrap(self._width)
        return self.fields[key]

    def _common_reason(self) -> str:
        draft = self._state.draft
        reasons = Counter(reason(one, draft.effective, self.index, draft.family_options) for one in self._visible)
        del reasons[""]
        if not reasons:
            return ""
        most, count = reasons.most_common(1)[0]
        return most if count > 1 or len(self._visible) == 1 else ""

    def _resized(self, event: tk.Event[tk.Misc]) -> None:
        if event.width != self._width:
            self._width = event.width
            self.frame.grid_columnconfigure(1, minsize=control_room(event.width))
            for field in self.fields.values():
                field.wrap(event.width)


class Columns:
    """Cards in two columns where there is room, else in one, in the order they were added."""

    def __init__(self, inside: tk.Frame) -> None:
        self.inside = inside
        self._columns = (tk.Frame(inside), tk.Frame(inside))
        for column in self._columns:
            look.paint(column, bg=look.WINDOW)
        self._cards: list[tuple[tk.Misc, int]] = []
        self._shown: list[tuple[tk.Misc, int]] = []
        self._two: bool | None = None
        inside.bind("<Configure>", lambda event: self._resized(event.width), add="+")

    def add(self, frame: tk.Misc, column: int) -> None:
        """One more card at the end."""
        self._cards.append((frame, column))

    def arrange(self, is_shown: Callable[[tk.Misc], bool]) -> None:
        """Put the cards that are shown where they belong."""
        shown = [(frame, column) for frame, column in self._cards if is_shown(frame)]
        if shown != self._shown:
            self._shown = shown
            self._place()

    def _resized(self, width: int) -> None:
        two = width >= look.px(TWO_COLUMNS_FROM)
        if two != self._two:
            self._two = two
            for number, column in enumerate(self._columns):
                column.grid(row=number * (not two), column=number * two, sticky="new", padx=(look.px(GAP / 2),) * 2)
                self.inside.grid_columnconfigure(
                    number, weight=1 if two or not number else 0, uniform="half" if two else ""
                )
            self._place()

    def _place(self) -> None:
        for frame, _ in self._cards:
            tk.Pack.pack_forget(frame)  # type: ignore[arg-type]
        for frame, column in self._shown:
            place = self._columns[column if self._two else 0]
            frame.pack(in_=place, fill="x", pady=(0, GAP))  # type: ignore[attr-defined]
        # The focus goes from card to card as they are stacked: down one column, then down the other.
        for frame, _ in sorted(self._shown, key=lambda one: one[1] if self._two else 0):
            frame.lift()
