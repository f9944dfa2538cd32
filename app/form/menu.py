"""One of several names."""

from __future__ import annotations

from app.controls import Menu
from app.form.field import CONTROL_WIDTH, ControlField


class MenuField(ControlField):
    """A drop-down list."""

    control: Menu

    def build(self) -> None:
        self.control = Menu(self.area, self.option.choices, self.put, on=self.on, width=CONTROL_WIDTH)
        self.control.pack(side="left", fill="x", expand=True)
