"""The field for an interval: a count and a unit, or never."""

from __future__ import annotations

from app.form.field import Field
from app.widgets import theme
from app.widgets.buttons import Entry, Menu
from modules.config import Interval

DEFAULT_COUNTS = {"steps": "100", "epochs": "1", "minutes": "30", "hours": "1"}
UNITS = ("never", *DEFAULT_COUNTS)
SINGULAR = {"step": "steps", "epoch": "epochs", "minute": "minutes", "hour": "hours"}


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
        if unit != "never" and (not self.control.get().strip() or self._was_never()):
            self.control.enable(True)
            self.control.show(DEFAULT_COUNTS[unit])
        self._changed(typing=False)
        self.show(self.state.draft.get(self.path))

    def _was_never(self) -> bool:
        return self.state.draft.get(self.path) == "never"

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
