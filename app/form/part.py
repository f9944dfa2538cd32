"""A part of the model, among those that the chosen family has."""

from __future__ import annotations

from app.form.field import CONTROL_WIDTH, ControlField
from app.inputs import Entry, Menu


class PartField(ControlField):
    """A list that drops down, once the family has said which parts there are; a line of text before that."""

    control: Entry | Menu

    def build(self) -> None:
        self.menu = Menu(self.area, (), self.put, on=self.on, width=CONTROL_WIDTH)
        self.line = Entry(self.area, lambda text: self.put(text, typing=True), on=self.on, width=CONTROL_WIDTH)
        self.control = self.line
        self.line.pack(side="left", fill="x", expand=True)

    def refresh(self) -> None:
        family = self.state.family.described
        if family is not None:
            self.menu.offer(family.parts)
        wanted = self.line if family is None else self.menu
        if wanted is not self.control:
            self.control.pack_forget()
            self.control = wanted
            self.control.pack(side="left", fill="x", expand=True)
            self.control.show(self.text_of(self.state.draft.get(self.path)))
            self.control.mark(self.state.draft.fault_at(self.path) is not None)
            self.control.enable(self._active)
        super().refresh()
