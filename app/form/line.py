"""Fields that are one line of text: text, numbers, lists of numbers."""

from __future__ import annotations

from app import look, texts
from app.controls import Entry, text
from app.form.field import CONTROL_WIDTH, ControlField

NUMBER_WIDTH = 120
NARROWEST = 160  # of a line that takes all the room there is


class TextField(ControlField):
    """Free text."""

    width = CONTROL_WIDTH
    control: Entry

    def build(self) -> None:
        placeholder = (texts.NONE if self.option.picks else texts.AUTOMATIC) if self.option.optional else None
        self.control = Entry(
            self.area, self._typed, left=self._left, on=self.on, width=self.width, placeholder=placeholder
        )
        whole = self.width >= NARROWEST
        self.control.pack(side="left", fill="x" if whole else "none", expand=whole)
        if self.option.unit:
            unit = text(self.area, self.option.unit, "small", colour=look.MUTED, on=self.on)
            unit.pack(side="left", padx=look.px(8))

    def read(self, typed: str) -> object:
        """What the text stands for; what does not fit is left to validation, which explains it."""
        return None if self.option.optional and not typed.strip() else typed

    def focus(self) -> None:
        self.control.focus_set()
        self.control.select_range(0, "end")

    def _typed(self, typed: str) -> None:
        self.put(self.read(typed), typing=True)

    def _left(self) -> None:
        """Nothing; kinds that tidy up what was typed do it here."""


class NumberField(TextField):
    """A number, with its unit beside it."""

    width = NUMBER_WIDTH

    def read(self, typed: str) -> object:
        stripped = typed.strip().replace(",", ".") if self.option.type == "number" else typed.strip()
        return None if self.option.optional and not stripped else stripped


class NumbersField(TextField):
    """Several numbers with commas between them: 0.9, 0.999."""

    def read(self, typed: str) -> object:
        plain = typed.strip().removeprefix("[").removesuffix("]")
        if not plain.strip():
            return None if self.option.optional else []
        return [part.strip() for part in plain.replace(";", ",").split(",")]
