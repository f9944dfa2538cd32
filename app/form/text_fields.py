"""Fields of text: text, numbers, lists of numbers, numbers with a slider, intervals, and several lines."""

from __future__ import annotations

import json
import re
import tkinter as tk

from app.form.field import CONTROL_WIDTH, ControlField, Field
from app.widgets import theme
from app.widgets.buttons import Entry, Menu, Slider, TextBox, text
from modules.config import Interval, Option
from modules.config.io.text_formats import read_yaml, write_yaml

NUMBER_WIDTH = 120
NARROWEST = 160  # of a line that fills the available width
# Thousands as messages separate them; "1,500" with decimals allowed is 1.5, as in many countries.
_GROUPED = {
    "integer": re.compile(r"[+-]?\d{1,3}(,\d{3})+"),
    "number": re.compile(r"[+-]?\d{1,3}(,\d{3}){2,}"),
}
DEFAULT_COUNTS = {"steps": "100", "epochs": "1", "minutes": "30", "hours": "1"}
UNITS = ("never", *DEFAULT_COUNTS)
SINGULAR = {"step": "steps", "epoch": "epochs", "minute": "minutes", "hour": "hours"}


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


class LongTextField(ControlField):
    """A multi-line text box; Tab leaves it."""

    control: TextBox
    height = 64
    mono = False

    def build(self) -> None:
        self.control = TextBox(
            self.area, self._typed, bg=self.bg, width=CONTROL_WIDTH, height=self.height, mono=self.mono
        )
        self.control.pack(fill="both", expand=True)

    def parse(self, typed: str) -> object:
        """The value of the typed text."""
        return typed

    def _typed(self, typed: str) -> None:
        self.put(self.parse(typed), typing=True)


class MappingField(LongTextField):
    """A mapping, one `name: value` per line."""

    height = 128
    mono = True

    def to_text(self, value: object) -> str:
        if isinstance(value, dict):
            return write_yaml(value).rstrip("\n") if value else ""
        return super().to_text(value)

    def parse(self, typed: str) -> object:
        if not typed.strip():
            return {}
        try:
            return read_yaml(typed)
        except ValueError:
            return typed


class ItemsField(MappingField):
    """A list that only custom families declare, one `- item` per line."""

    def to_text(self, value: object) -> str:
        if isinstance(value, (list, tuple)):
            return "\n".join(f"- {json.dumps(item, ensure_ascii=False)}" for item in value)
        return super().to_text(value)

    def parse(self, typed: str) -> object:
        return super().parse(typed) if typed.strip() else []


class IntervalField(Field):
    """A text field for the count and a menu for the unit."""

    def build(self) -> None:
        self.control = Entry(self.area, lambda typed: self._changed(typing=True), bg=self.bg, width=76)
        self.unit = Menu(self.area, UNITS, self._unit_chosen, bg=self.bg, width=152)
        self.control.pack(side="left")
        self.unit.pack(side="left", fill="x", expand=True, padx=(theme.px(8), 0))
        self._enabled = True

    def show(self, value: object) -> None:
        count, unit = _split(self.to_text(value))
        self.unit.show(unit)
        self.control.show(count)
        self.control.enable(self._enabled and unit != "never")

    def enable(self, enabled: bool) -> None:
        self._enabled = enabled
        self.unit.enable(enabled)
        self.control.enable(enabled and self.unit.value() != "never")

    def mark(self, wrong: bool) -> None:
        self.control.mark(wrong)

    def focus(self) -> None:
        (self.unit if self.unit.value() == "never" else self.control).focus_set()

    def _unit_chosen(self, unit: str) -> None:
        if unit != "never" and (not self.control.get().strip() or self.state.draft.get(self.path) == "never"):
            self.control.enable(True)
            self.control.show(DEFAULT_COUNTS[unit])
        self._changed(typing=False)
        self.show(self.state.draft.get(self.path))

    def _changed(self, typing: bool) -> None:
        unit = self.unit.value()
        self.put("never" if unit == "never" else f"{self.control.get().strip()} {unit}".strip(), typing)


def _split(value: str) -> tuple[str, str]:
    """Split "30 minutes" into count and unit; also accepts incomplete text."""
    if value == "never":
        return "", "never"
    count, _, unit = value.rpartition(" ")
    unit = SINGULAR.get(unit, unit)
    if unit not in DEFAULT_COUNTS:
        try:
            known = Interval.parse(value)
        except ValueError:
            return value, "steps"
        return str(known).rpartition(" ")[0], SINGULAR.get(known.unit, known.unit)
    return count, unit
