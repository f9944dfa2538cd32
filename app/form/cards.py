"""Builds fields from declared settings and lays them out in cards, in one or two columns."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.form.choice_fields import MenuField, SwitchField
from app.form.field import CONTROL_WIDTH, MESSAGE_HEIGHT, Field, control_width, titles_width
from app.form.path_fields import PathField
from app.form.setting_text import inactive_reason
from app.form.text_fields import (
    IntervalField,
    ItemsField,
    LongTextField,
    MappingField,
    NumberField,
    NumbersField,
    SliderField,
    TextField,
    has_slider,
)
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Switch, card, text
from modules.config import Option

TWO_COLUMNS_FROM = 880  # unscaled pixels of the form's width
GAP = 16
_BELOW = 999  # row of what is below the fields

_FIELD_CLASSES: dict[str, type[Field]] = {
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
    """The field class for a setting."""
    if option.picks == "long_text":
        return LongTextField
    if option.picks in ("file", "folder"):
        return PathField
    return SliderField if has_slider(option) else _FIELD_CLASSES[option.type]


@dataclass(frozen=True)
class Card:
    """A group of settings in reading order, and its column if there is room for two."""

    title: str
    paths: tuple[str, ...]
    column: int = 0


class FieldCard:
    """A card of fields. Each field is built when first shown; hidden fields leave no gap."""

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
        self.frame.grid_columnconfigure(1, minsize=theme.px(CONTROL_WIDTH) + Switch.RING)
        self.frame.grid_columnconfigure(2, minsize=theme.px(34), weight=1)
        self.heading = text(self.frame, title, "heading")
        self.heading.grid(
            row=0, column=0, columnspan=3, sticky="w", padx=theme.px(16), pady=(theme.px(12), theme.px(4))
        )
        self._reason_label = text(self.frame, "", "small", colour=theme.MUTED)
        self._reason_label.grid(
            row=0, column=1, columnspan=2, sticky="e", padx=(0, theme.px(16)), pady=(theme.px(12), theme.px(4))
        )
        self.frame.grid_rowconfigure(1, minsize=theme.px(8))
        tk.Misc.bind(self.frame, "<Configure>", self._resized, add="+")

    def arrange(self, wanted: Callable[[Option], bool]) -> bool:
        """Show the options for which `wanted` is true; return whether there are any."""
        visible = [option for option in self.options if wanted(option)]
        if visible == self._visible:
            return bool(visible)
        for option in self._visible:
            if option not in visible:
                self.fields[option.path, option.variant].remove()
        for row in range(2 * len(visible) + 3, 2 * len(self._visible) + 3):  # of fields that are gone
            self.frame.grid_rowconfigure(row, minsize=0)
        self._visible = visible
        self.frame.grid_rowconfigure(2 * len(visible) + 2, minsize=theme.px(6))
        for row, option in enumerate(visible, start=1):
            field = self._field(option)
            field.grid(row)
            self.frame.grid_rowconfigure(2 * row, minsize=theme.px(theme.CONTROL_HEIGHT))
            self.frame.grid_rowconfigure(2 * row + 1, minsize=theme.px(MESSAGE_HEIGHT))
        return bool(visible)

    def create(self, wanted: Callable[[Option], bool]) -> Iterator[None]:
        """Create the fields that `arrange` will show, one at each step."""
        options = self.options
        for option in options:
            if self.options is not options:  # replaced meanwhile
                return
            if wanted(option):
                self._field(option)
                yield

    def refresh(self) -> None:
        """Update the fields from the draft."""
        self._reason = self._shared_reason()
        if self._reason_label.cget("text") != (shown := self._heading_reason()):
            self._reason_label.configure(text=shown)
        for option in self._visible:
            self.fields[option.path, option.variant].refresh()

    def replace_options(self, title: str, options: Sequence[Option]) -> None:
        """Replace the title and options, destroying the fields of the previous ones."""
        for field in self.fields.values():
            field.destroy()
        self.fields.clear()
        self._visible = []
        self.options = list(options)
        self.heading.configure(text=title)

    def add_below(self, widget: tk.Widget) -> None:
        """Put something else below the fields, over the whole width."""
        side, bottom = theme.px(16), theme.px(14)
        widget.grid(row=_BELOW, column=0, columnspan=3, sticky="ew", padx=side, pady=(theme.px(4), bottom))

    def find(self, path: str) -> Field | None:
        """The visible field of a path, or the field that contains it (betas for betas.1)."""
        for option in self._visible:
            field = self.fields[option.path, option.variant]
            if path == field.path or path.startswith(f"{field.path}."):
                return field
        return None

    def visible_fields(self) -> Iterable[Field]:
        return (self.fields[option.path, option.variant] for option in self._visible)

    def shows_reason(self, reason: str) -> bool:
        """Whether the card's heading already shows this reason."""
        return reason == self._reason

    def _field(self, option: Option) -> Field:
        key = (option.path, option.variant)
        if key not in self.fields:
            self.fields[key] = self._make(option)(self.frame, option, self._state, self)
            if self._width:
                self.fields[key].wrap(self._width)
        return self.fields[key]

    def _heading_reason(self) -> str:
        """The shared reason, shorter where it is a switch of this very card."""
        cause = self._cause(self._reason)
        if cause is not None and cause.type == "switch":
            return f"“{cause.title}” is {'on' if self._state.draft.get(cause.path) else 'off'}"
        return self._reason

    def _shared_reason(self) -> str:
        """What several fields need, if that holds for the whole card or one of its switches is the cause."""
        draft = self._state.draft
        unmet = [
            inactive_reason(option, draft.merged_data, self.index, draft.family_options) for option in self._visible
        ]
        found = Counter(filter(None, unmet))
        if not found:
            return ""
        most, count = found.most_common(1)[0]
        if count == 1 < len(self._visible):
            return ""
        cause = self._cause(most)
        is_whole = all(reason or option is cause for option, reason in zip(self._visible, unmet, strict=True))
        return most if is_whole or (cause is not None and cause.type == "switch") else ""

    def _cause(self, reason: str) -> Option | None:
        """The setting of this card that a reason names."""
        return next((option for option in self._visible if f"“{option.title}”" in reason), None)

    def _resized(self, event: tk.Event[tk.Misc]) -> None:
        if event.width != self._width:
            self._width = event.width
            self.frame.grid_columnconfigure(0, minsize=titles_width(event.width) - Switch.RING)
            control = control_width(event.width)
            gives_way = int(control < theme.px(CONTROL_WIDTH))  # the controls are narrower than they would like to be
            self.frame.grid_columnconfigure(1, minsize=control + Switch.RING, weight=gives_way)
            for field in self.fields.values():
                field.wrap(event.width)


class Columns:
    """Cards in one or two columns, depending on the width, in the order they were added.

    Row 0 of `inside` is free for what stands above both columns.
    """

    def __init__(self, inside: tk.Frame) -> None:
        self.inside = inside
        self._columns = (tk.Frame(inside), tk.Frame(inside))
        for column in self._columns:
            theme.paint(column, bg=theme.WINDOW)
        self._cards: list[tuple[tk.Misc, int]] = []
        self._shown: list[tuple[tk.Misc, int]] = []
        self._two: bool | None = None
        inside.bind("<Configure>", lambda event: self._resized(event.width), add="+")

    def add(self, frame: tk.Misc, column: int) -> None:
        """Append a card."""
        self._cards.append((frame, column))

    def arrange(self, is_shown: Callable[[tk.Misc], bool]) -> None:
        """Lay out the cards that are shown."""
        shown = [(frame, column) for frame, column in self._cards if is_shown(frame)]
        if shown != self._shown:
            self._shown = shown
            self._place()

    def _resized(self, width: int) -> None:
        two = width >= theme.px(TWO_COLUMNS_FROM)
        if two != self._two:
            self._two = two
            for number, column in enumerate(self._columns):
                column.grid(
                    row=1 + number * (not two), column=number * two, sticky="new", padx=(theme.px(GAP / 2),) * 2
                )
                self.inside.grid_columnconfigure(
                    number, weight=1 if two or not number else 0, uniform="half" if two else ""
                )
            self._place()

    def _place(self) -> None:
        """Pack what is new or moved; what stays in its place is not drawn again."""
        if self._two is None:
            return  # until the width is known
        for number, place in enumerate(self._columns):
            wanted = [frame for frame, column in self._shown if number == (column if self._two else 0)]
            packed: list[tk.Misc] = list(place.pack_slaves())
            for gone in packed:
                if gone not in wanted:
                    tk.Pack.pack_forget(gone)  # type: ignore[arg-type]
            stays = [frame for frame in packed if frame in wanted]
            for at, frame in enumerate(wanted):
                if stays[: at + 1] != wanted[: at + 1]:
                    frame.pack(in_=place, fill="x", pady=(0, GAP))  # type: ignore[attr-defined]
        # Keyboard focus follows the stacking order: down one column, then down the other.
        for frame, _ in sorted(self._shown, key=lambda item: item[1] if self._two else 0):
            frame.lift()
