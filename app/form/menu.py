"""One of several names."""

from __future__ import annotations

from app.controls import Menu
from app.form.field import CONTROL_WIDTH, Field


class MenuField(Field):
    """A drop-down list."""

    def build(self) -> None:
        self.control = Menu(self.area, self.option.choices, self.put, on=self.on, width=CONTROL_WIDTH)
        self.control.pack(side="left", fill="x", expand=True)

    def show(self, value: object) -> None:
        self.control.show(self.text_of(value))

    def enable(self, enabled: bool) -> None:
        self.control.enable(enabled)

    def mark(self, wrong: bool) -> None:
        self.control.mark(wrong)

    def focus(self) -> None:
        self.control.focus_set()
