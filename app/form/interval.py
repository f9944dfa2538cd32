"""How often: a count and its unit, or never."""

from __future__ import annotations

from app import look
from app.controls import Entry, Menu
from app.form.field import Field
from modules.config import Interval

USUAL = {"steps": "100", "epochs": "1", "minutes": "30", "hours": "1"}
UNITS = ("never", *USUAL)
SINGULAR = {"step": "steps", "epoch": "epochs", "minute": "minutes", "hour": "hours"}


class IntervalField(Field):
    """A line for the count and a list for the unit."""

    def build(self) -> None:
        self.control = Entry(self.area, lambda typed: self._changed(typing=True), on=self.on, width=76)
        self.unit = Menu(self.area, UNITS, self._unit_chosen, on=self.on, width=152)
        self.control.pack(side="left")
        self.unit.pack(side="left", fill="x", expand=True, padx=(look.px(8), 0))
        self._enabled = True

    def show(self, value: object) -> None:
        count, unit = _parts(self.text_of(value))
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
            self.control.show(USUAL[unit])
        self._changed(typing=False)
        self.show(self.state.draft.get(self.path))

    def _was_never(self) -> bool:
        return self.state.draft.get(self.path) == "never"

    def _changed(self, typing: bool) -> None:
        unit = self.unit.value()
        self.put("never" if unit == "never" else f"{self.control.get().strip()} {unit}".strip(), typing)


def _parts(value: str) -> tuple[str, str]:
    """ "30 minutes" as count and unit; also of text that is no interval yet."""
    if value == "never":
        return "", "never"
    count, _, unit = value.rpartition(" ")
    unit = SINGULAR.get(unit, unit)
    if unit not in USUAL:
        try:
            known = Interval.parse(value)
        except ValueError:
            return value, "steps"
        return str(known).rpartition(" ")[0], SINGULAR.get(known.unit, known.unit)
    return count, unit
