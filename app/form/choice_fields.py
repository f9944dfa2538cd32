"""Fields that are a switch, a drop-down list, or a line of text with a menu."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from app.form.field import CONTROL_WIDTH, ControlField, Field
from app.form.setting_text import choice_details
from app.form.text_fields import NARROWEST, TextField
from app.widgets.buttons import Button, Menu, PopupMenu, Switch, popup_menu
from modules.config import TARGET_PRESETS, UNET_PRESETS


class SuggestionField(TextField):
    """A line of text, with a menu of usual values."""

    width = NARROWEST

    def build(self) -> None:
        super().build()
        self.choose_button = Button(self.area, icon="down", bg=self.bg, command=self._open)
        self.choose_button.pack(side="right", padx=(4, 0), before=self.control)

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.choose_button.configure(state="normal" if enabled else "disabled")

    def suggestions(self) -> tuple[str, ...]:
        """The values in the menu."""
        raise NotImplementedError

    def add_to(self, menu: PopupMenu) -> None:
        """Add the entries of the menu."""
        for value in self.suggestions():
            menu.add_command(label=value, command=partial(self.choose, value))

    def choose(self, value: str) -> None:
        """Take one of the values."""
        self.control.show(value)
        self.put(value)

    def _open(self) -> None:
        menu = popup_menu(self.area)
        self.add_to(menu)
        self.control.update_idletasks()
        menu.open_below(self.control, gap=2)


class TargetsField(SuggestionField):
    """The layers that a LoRA adapts: one of the presets, or patterns."""

    def suggestions(self) -> tuple[str, ...]:
        family = self.state.family.declaration
        if family is None or not family.parts or "unet" in family.parts:
            return TARGET_PRESETS
        return tuple(preset for preset in TARGET_PRESETS if preset not in UNET_PRESETS)


class MenuField(ControlField):
    """One of several values, in a drop-down list."""

    control: Menu
    details: Mapping[str, str] = {}

    def build(self) -> None:
        details = self.details or choice_details(self.option)
        self.control = Menu(
            self.area,
            self.option.choices,
            self.put,
            bg=self.bg,
            width=CONTROL_WIDTH,
            titles=self.option.titles,
            details=details,
            names_values=True,
        )
        self.control.pack(side="left", fill="x", expand=True)


class SwitchField(Field):
    """A switch."""

    is_narrow = True
    ring = Switch.RING

    def build(self) -> None:
        self.control = Switch(self.area, self.put, bg=self.bg)
        self.control.pack(side="left")

    def show(self, value: object) -> None:
        self.control.show(value is True)

    def enable(self, enabled: bool) -> None:
        self.control.enable(enabled)

    def focus(self) -> None:
        self.control.focus_set()
