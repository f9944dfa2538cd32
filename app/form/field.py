"""What every field has: its title with help, its control, the default one click away, and a line for what is wrong."""

from __future__ import annotations

import tkinter as tk
from typing import Protocol

from app import icons, look, texts
from app.controls import add_hint, frame, text
from app.form.words import as_text, help_of, reason, short, shown
from app.hint import Hint
from app.inputs import Entry, Menu, TextBox
from app.state import AppState
from modules.config import Option

CONTROL_WIDTH = 240
TITLE_MINIMUM = 140
WIDEST_CONTROL = 380
CONTROL_SHARE = 0.45  # of the card's width, between the two
MESSAGE_HEIGHT = 18  # kept free below each control, so that a message moves nothing
FLASH_MS = 1600


def control_room(card_width: int) -> int:
    """Pixels for the controls of a card that is so wide: where there is room, names and paths are seen whole."""
    return round(min(max(look.px(CONTROL_WIDTH), card_width * CONTROL_SHARE), look.px(WIDEST_CONTROL)))


class Place(Protocol):
    """What a field asks of the form it stands in."""

    index: int

    def reason_told_above(self, reason: str) -> bool: ...


class Field:
    """One setting; the kinds of fields fill in the three methods at the end."""

    def __init__(
        self, parent: tk.Misc, option: Option, state: AppState, place: Place, on: look.Colour = look.CARD
    ) -> None:
        self.option = option
        self.state = state
        self.on = on
        self._place = place
        self._value: object = _NOTHING
        self._note = ("", look.BAD)
        self._active = True
        self._at_default = True
        self._own_note = ""
        self.title = text(parent, option.title, on=on, wrap=TITLE_MINIMUM + 60)
        self.area = frame(parent, on)
        self.message = text(parent, "", "small", colour=look.BAD, on=on)
        self.reset = tk.Label(parent, borderwidth=0, highlightthickness=0)
        look.paint(self.reset, bg=on)
        add_hint(self.title, lambda: help_of(option))
        add_hint(self.reset, lambda: texts.RESET.format(value=shown(option, option.default)))
        self.reset.bind("<Button-1>", lambda event: self.back_to_default())
        self.build()

    @property
    def path(self) -> str:
        """The path in the draft, with the item's number for an item of a list."""
        return self.option.path.replace("*", str(self._place.index))

    def grid(self, row: int) -> None:
        """Take two rows of the parent's grid: title, control and default; below them the message."""
        self.title.grid(row=2 * row, column=0, sticky="w", padx=(look.px(16), look.px(8)))
        self.area.grid(row=2 * row, column=1, sticky="ew")
        self.reset.grid(row=2 * row, column=2, padx=(look.px(4), look.px(10)))
        self.message.grid(row=2 * row + 1, column=0, columnspan=3, sticky="nw", padx=(look.px(16), look.px(12)))

    def remove(self) -> None:
        """Out of the grid, to be put back later."""
        for part in (self.title, self.area, self.reset, self.message):
            part.grid_remove()

    def destroy(self) -> None:
        """For good."""
        for part in (self.title, self.area, self.reset, self.message):
            part.destroy()

    def refresh(self) -> None:
        """Show what the draft says; only what changed is drawn again."""
        value = self.state.draft.get(self.path)
        if type(value) is not type(self._value) or value != self._value:
            self._value = value
            self.show(value)
            self._show_default()
        self._refresh_state()

    def put(self, value: object, typing: bool = False) -> None:
        """Hand a new value to the draft."""
        self._value = value
        self.state.draft.set(self.path, value, typing)
        self._show_default()

    def back_to_default(self) -> None:
        """One click."""
        if not self._at_default:
            Hint.of(self.title).hide()
            self.state.draft.reset(self.path, self.option)

    def note(self, words: str) -> None:
        """Something worth knowing that is no fault, such as a folder that is not there."""
        self._own_note = words
        self._refresh_state()

    def flash(self) -> None:
        """Show that this is the field that was looked for."""
        self.title.configure(bg=look.now(look.ACCENT_SOFT), fg=look.now(look.ACCENT_TEXT))
        self.title.after(FLASH_MS, self._unflash)

    def show_help(self) -> None:
        """The help, without the pointer."""
        Hint.of(self.title).show(self.title, help_of(self.option))

    def holds(self, widget: object) -> bool:
        """Whether a widget is part of this field."""
        return str(widget).startswith(f"{self.area}.")

    # -- each kind of field fills these in

    def build(self) -> None:
        """Make the control in `area`."""
        raise NotImplementedError

    def show(self, value: object) -> None:
        """Show a value in the control without handing it to the draft."""
        raise NotImplementedError

    def enable(self, enabled: bool) -> None:
        """Grey the control, or not."""
        raise NotImplementedError

    def mark(self, wrong: bool) -> None:
        """Mark the control as wrong; a control that cannot hold anything wrong has nothing to do."""

    def focus(self) -> None:
        """Give the control the focus."""
        raise NotImplementedError

    # -- inside

    def _refresh_state(self) -> None:
        draft = self.state.draft
        fault = draft.fault_at(self.path)
        why = reason(self.option, draft.effective, self._place.index, draft.family_options)
        if fault:
            note = (short(fault, self.option), look.BAD)
        elif why:
            note = ("" if self._place.reason_told_above(why) else why, look.FAINT)
        else:
            note = (self._own_note, look.WARN)
        if note != self._note:
            if bool(self._note[0] and self._note[1] is look.BAD) != bool(fault):
                self.mark(bool(fault))
            self._note = note
            look.paint(self.message, fg=note[1])
            self.message.configure(text=note[0])
        if bool(why) == self._active:
            self._active = not why
            self.enable(self._active)
            look.paint(self.title, fg=look.TEXT if self._active else look.FAINT)

    def _show_default(self) -> None:
        at_default = self.option.required or self.state.draft.is_default(self.path, self.option)
        if at_default == self._at_default:
            return
        self._at_default = at_default
        if at_default:
            look.follow(self.reset, "icon", lambda: self.reset.configure(image=""))
            self.reset.configure(cursor="")
        else:
            icons.show(self.reset, "reset", 16, look.MUTED)
            self.reset.configure(cursor="hand2")

    def _unflash(self) -> None:
        if self.title.winfo_exists():
            look.paint(self.title, bg=self.on, fg=look.TEXT if self._active else look.FAINT)

    def wrap(self, width: int) -> None:
        """Break the message and the title where the card ends; `width` in pixels."""
        self.message.configure(wraplength=max(width - look.px(28), 80))
        self.title.configure(wraplength=max(width - control_room(width) - look.px(60), look.px(TITLE_MINIMUM - 40)))

    def text_of(self, value: object) -> str:
        """The value as it is typed."""
        return as_text(value)


class ControlField(Field):
    """A field of one control that shows text."""

    control: Entry | Menu | TextBox

    def show(self, value: object) -> None:
        self.control.show(self.text_of(value))

    def enable(self, enabled: bool) -> None:
        self.control.enable(enabled)

    def mark(self, wrong: bool) -> None:
        self.control.mark(wrong)

    def focus(self) -> None:
        self.control.focus_set()


_NOTHING = object()
