"""On or off."""

from __future__ import annotations

from app.controls import Switch
from app.form.field import Field


class SwitchField(Field):
    """A switch."""

    def build(self) -> None:
        self.control = Switch(self.area, self.put, on=self.on)
        self.control.pack(side="left")

    def show(self, value: object) -> None:
        self.control.show(value is True)

    def enable(self, enabled: bool) -> None:
        self.control.enable(enabled)

    def focus(self) -> None:
        self.control.focus_set()
