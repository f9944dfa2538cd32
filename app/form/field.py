"""The base of all fields: title with help, control, reset to default, and a line for errors."""

from __future__ import annotations

import tkinter as tk
from typing import ClassVar, Protocol

from app.form.setting_text import display_value, fault_message, format_value, help_text, inactive_reason
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import add_tooltip, frame, text
from app.widgets.inputs import Entry, Menu, Switch, TextBox
from app.widgets.tooltip import Tooltip
from modules.config import Option

CONTROL_WIDTH = 240
TITLE_MINIMUM = 140
NARROWEST_TITLE = 76  # of a narrow card at a large scale, whose titles have many lines
WIDEST_CONTROL = 380
WIDEST_TITLES = 224  # the column of titles: wider, they would stand too far from their controls
AROUND = 34 + 24  # the reset button and the gaps
MESSAGE_HEIGHT = 20  # reserved below each control, so that a message moves nothing
BELOW_MESSAGE = 5  # so that it stands nearer to its own control than to the next one
FLASH_MS = 1600


def control_width(card_width: int) -> int:
    """Width of a card's control column in pixels; wide cards give it more, so that paths are seen whole."""
    room = card_width - theme.px(WIDEST_TITLES + AROUND)
    least = min(theme.px(CONTROL_WIDTH), card_width - theme.px(NARROWEST_TITLE + 24 + AROUND))
    return min(max(least, room), theme.px(WIDEST_CONTROL))


def titles_width(card_width: int) -> int:
    """Width of a card's column of titles in pixels."""
    return min(card_width - control_width(card_width) - theme.px(AROUND), theme.px(WIDEST_TITLES))


class FieldHost(Protocol):
    """What a field needs from the card that contains it."""

    index: int

    def shows_reason(self, reason: str) -> bool: ...


class Field:
    """One setting. Subclasses implement build, show, enable, focus and, if needed, mark."""

    is_narrow: ClassVar[bool] = False  # the control fills only a part of its column: the reset arrow stands beside it
    ring: ClassVar[int] = 0  # pixels around what is seen of the control

    def __init__(
        self, parent: tk.Misc, option: Option, state: AppState, host: FieldHost, bg: theme.Colour = theme.CARD
    ) -> None:
        self.option = option
        self.state = state
        self.bg = bg
        self._host = host
        self._value: object = _NOTHING
        self._note = ("", theme.BAD)
        self._active = True
        self._at_default = True
        self._note_text, self._note_colour = "", theme.WARN
        self.title = text(parent, option.title, bg=bg, wrap=TITLE_MINIMUM + 60)
        self.area = frame(parent, bg)
        self.message = text(parent, "", "small", colour=theme.BAD, bg=bg)
        self.reset = tk.Label(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self.reset, bg=bg)
        add_tooltip(self.title, lambda: help_text(option))
        add_tooltip(self.reset, self._reset_help)
        self.reset.bind("<Button-1>", lambda event: self.reset_to_default())
        self.build()

    @property
    def path(self) -> str:
        """The path in the draft, with the index for an item of a list."""
        return self.option.path.replace("*", str(self._host.index))

    def grid(self, row: int) -> None:
        """Take two rows of the parent's grid: title, control and reset; the message below."""
        self.title.grid(row=2 * row, column=0, sticky="w", padx=(theme.px(16), theme.px(8) - Switch.RING))
        self.area.grid(row=2 * row, column=1, sticky="ew", padx=(Switch.RING - self.ring, 0))
        if self.is_narrow:
            self.reset.pack(in_=self.area, side="left", padx=theme.px(4))
        else:
            self.reset.grid(row=2 * row, column=2, sticky="w", padx=(theme.px(4), theme.px(10)))
        self.area.lift()  # keyboard focus follows the stacking order
        self.reset.lift()
        self.message.grid(
            row=2 * row + 1,
            column=0,
            columnspan=3,
            sticky="nw",
            padx=(theme.px(16), theme.px(12)),
            pady=(0, theme.px(BELOW_MESSAGE)),
        )

    def remove(self) -> None:
        """Remove the field from the grid; `grid` puts it back."""
        for part in (self.title, self.area, self.reset, self.message):
            part.grid_remove()

    def destroy(self) -> None:
        """Destroy all widgets of the field."""
        for part in (self.title, self.area, self.reset, self.message):
            part.destroy()

    def refresh(self) -> None:
        """Update the control from the draft, only if something changed."""
        value = self.state.draft.get(self.path)
        if type(value) is not type(self._value) or value != self._value:
            self._value = value
            self.show(value)
            self._show_default()
        self._refresh_state()

    def put(self, value: object, typing: bool = False) -> None:
        """Write a new value to the draft."""
        self._value = value
        self.state.draft.set(self.path, value, typing)
        self._show_default()

    def reset_to_default(self) -> None:
        """Reset the setting to its default."""
        if not self._at_default:
            Tooltip.of(self.title).hide()
            self.state.draft.reset(self.path, self.option)

    def note(self, content: str, colour: theme.Colour = theme.WARN) -> None:
        """Show a note that is not an error, for example that a folder does not exist."""
        self._note_text, self._note_colour = content, colour
        self._refresh_state()

    def flash(self) -> None:
        """Highlight the field for a moment, after a jump to it."""
        self.title.configure(bg=theme.resolve(theme.ACCENT_SOFT), fg=theme.resolve(theme.ACCENT_TEXT))
        self.title.after(FLASH_MS, self._unflash)

    def show_help(self) -> None:
        """Show the help below the title."""
        Tooltip.of(self.title).show(self.title, help_text(self.option))

    def holds(self, widget: object) -> bool:
        """Whether a widget is part of this field."""
        return str(widget).startswith(f"{self.area}.")

    def build(self) -> None:
        """Create the control in `area`."""
        raise NotImplementedError

    def show(self, value: object) -> None:
        """Show a value in the control without writing it to the draft."""
        raise NotImplementedError

    def enable(self, enabled: bool) -> None:
        """Enable or disable the control."""
        raise NotImplementedError

    def mark(self, wrong: bool) -> None:
        """Mark the control as invalid or valid; controls that are always valid need not implement it."""

    def focus(self) -> None:
        """Give the control the focus."""
        raise NotImplementedError

    def _refresh_state(self) -> None:
        draft = self.state.draft
        fault = draft.fault_at(self.path)
        why = inactive_reason(self.option, draft.merged_data, self._host.index, draft.family_options)
        if fault:
            note = (fault_message(fault, self.option), theme.BAD)
        elif why:
            note = ("" if self._host.shows_reason(why) else why, theme.FAINT)
        else:
            note = (self._note_text, self._note_colour)
        if note != self._note:
            was_wrong, is_wrong = (bool(text) and colour is theme.BAD for text, colour in (self._note, note))
            if was_wrong != is_wrong:
                self.mark(is_wrong)
            self._note = note
            theme.paint(self.message, fg=note[1])
            self.message.configure(text=note[0])
        is_active = not why or bool(fault)  # what is wrong can be mended, also where it has no effect
        if is_active != self._active:
            self._active = is_active
            self.enable(self._active)
            theme.paint(self.title, fg=theme.TEXT if self._active else theme.FAINT)

    def _reset_help(self) -> str:
        """To which value it resets, and which the file or preset has if that is another."""
        draft, option = self.state.draft, self.option
        shown = f"Reset to Tandem's default: {display_value(option, option.default)}"
        saved = draft.saved_value(self.path)
        if draft.name and saved not in (None, option.default):
            shown += f"\n{draft.name} has {display_value(option, saved)}"
        return shown

    def _show_default(self) -> None:
        at_default = self.option.required or self.state.draft.is_default(self.path, self.option)
        if at_default == self._at_default:
            return
        self._at_default = at_default
        if at_default:
            theme.follow(self.reset, "icon", lambda: self.reset.configure(image=""))
            self.reset.configure(cursor="")
        else:
            icons.show(self.reset, "reset", 16, theme.MUTED)
            self.reset.configure(cursor="hand2")

    def _unflash(self) -> None:
        if self.title.winfo_exists():
            theme.paint(self.title, bg=self.bg, fg=theme.TEXT if self._active else theme.FAINT)

    def wrap(self, width: int) -> None:
        """Wrap the message and the title to the card's width in pixels."""
        self.message.configure(wraplength=max(width - theme.px(28), 80))
        self.title.configure(wraplength=max(titles_width(width) - theme.px(24), theme.px(NARROWEST_TITLE)))

    def to_text(self, value: object) -> str:
        """The value as typed into the control."""
        return format_value(value)


class ControlField(Field):
    """A field with a single control that shows text."""

    control: Entry | Menu | TextBox

    def show(self, value: object) -> None:
        self.control.show(self.to_text(value))

    def enable(self, enabled: bool) -> None:
        self.control.enable(enabled)

    def mark(self, wrong: bool) -> None:
        self.control.mark(wrong)

    def focus(self) -> None:
        self.control.focus_set()


_NOTHING = object()
