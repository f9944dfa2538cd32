"""Fields that are one line of text: text, numbers, lists of numbers, and numbers with a slider."""

from __future__ import annotations

import re
import tkinter as tk

from app.form.field import CONTROL_WIDTH, ControlField
from app.widgets import theme
from app.widgets.buttons import Entry, Slider, text
from modules.config import Option

NUMBER_WIDTH = 120
NARROWEST = 160  # of a line that fills the available width
# Thousands as messages separate them; "1,500" with decimals allowed is 1.5, as in many countries.
_GROUPED = {
    "integer": re.compile(r"[+-]?\d{1,3}(,\d{3})+"),
    "number": re.compile(r"[+-]?\d{1,3}(,\d{3}){2,}"),
}


class TextField(ControlField):
    """Free text."""

    width = CONTROL_WIDTH
    control: Entry
    _unit: tk.Label | None = None

    def build(self) -> None:
        word = self.option.empty or ("none" if self.option.picks else "automatic")
        placeholder = word if self.option.optional or self.option.empty else None
        self.control = Entry(
            self.area, self._typed, left=self._left, bg=self.bg, width=self.width, placeholder=placeholder
        )
        fills = self.width >= NARROWEST
        self.control.pack(side="left", fill="x" if fills else "none", expand=fills)
        if self.option.unit:
            self._unit = text(self.area, self.option.unit, "small", colour=theme.MUTED, bg=self.bg)
            self._unit.pack(side="left", padx=theme.px(8))

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        if self._unit is not None:
            theme.paint(self._unit, fg=theme.MUTED if enabled else theme.FAINT)

    def parse(self, typed: str) -> object:
        """The value of the typed text; invalid text is left to validation."""
        return None if self.option.optional and not typed.strip() else typed

    def focus(self) -> None:
        self.control.focus_set()
        self.control.select_range(0, "end")

    def _typed(self, typed: str) -> None:
        self.put(self.parse(typed), typing=True)

    def _left(self) -> None:
        """Called when the focus leaves; subclasses may tidy up the text."""


class NumberField(TextField):
    """A number with its unit."""

    width = NUMBER_WIDTH
    is_narrow = True

    def parse(self, typed: str) -> object:
        stripped = typed.strip()
        if _GROUPED[self.option.type].fullmatch(stripped):
            stripped = stripped.replace(",", "")
        elif self.option.type == "number":
            stripped = stripped.replace(",", ".")
        return None if self.option.optional and not stripped else stripped


class NumbersField(TextField):
    """Several numbers, separated by commas: 0.9, 0.999."""

    def parse(self, typed: str) -> object:
        plain = typed.strip().removeprefix("[").removesuffix("]")
        if not plain.strip():
            return None if self.option.optional else []
        return [part.strip() for part in plain.replace(";", ",").split(",")]


STEPS = 100


def has_slider(option: Option) -> bool:
    """Whether the option is a share from 0 to at most 1, which suits a slider."""
    low, high = option.bounds.ge, option.bounds.le
    return option.type == "number" and not option.optional and low == 0 and high is not None and high <= 1


class SliderField(NumberField):
    """A slider with a number next to it."""

    width = 76
    is_narrow = False

    def build(self) -> None:
        low, high = self.option.bounds.ge or 0.0, self.option.bounds.le or 1.0
        self.slider = Slider(self.area, low, high, round((high - low) * STEPS), self._moved, bg=self.bg, width=148)
        super().build()
        self.slider.pack(side="left", fill="x", expand=True, padx=(theme.px(12), 0))

    def show(self, value: object) -> None:
        super().show(value)
        try:
            self.slider.show(float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return  # not a number: leave the slider as it is

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.slider.enable(enabled)

    def _moved(self, value: float) -> None:
        rounded = round(value, 2)
        self.control.show(self.to_text(rounded))
        self.put(rounded, typing=True)

    def _typed(self, typed: str) -> None:
        super()._typed(typed)
        self.show(typed.strip().replace(",", ".")) if not typed.strip().endswith((".", ",")) else None
