"""Fields that are a switch or a drop-down list."""

from __future__ import annotations

from app.form.field import CONTROL_WIDTH, ControlField, Field
from app.widgets.buttons import Menu, Switch


class MenuField(ControlField):
    """One of several values, in a drop-down list."""

    control: Menu

    def build(self) -> None:
        self.control = Menu(self.area, self.option.choices, self.put, bg=self.bg, width=CONTROL_WIDTH)
        self.control.pack(side="left", fill="x", expand=True)


class SwitchField(Field):
    """A switch."""

    def build(self) -> None:
        self.control = Switch(self.area, self.put, bg=self.bg)
        self.control.pack(side="left")

    def show(self, value: object) -> None:
        self.control.show(value is True)

    def enable(self, enabled: bool) -> None:
        self.control.enable(enabled)

    def focus(self) -> None:
        self.control.focus_set()
