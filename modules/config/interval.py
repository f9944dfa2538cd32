"""How often something happens: "200 steps", "1 epoch", "30 minutes", "2 hours" or "never"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Unit = Literal["steps", "epochs", "minutes", "never"]

_TEXT = re.compile(r"\s*(?P<count>[0-9.]+(?:e[-+]?[0-9]+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE)
_UNITS: dict[str, tuple[Unit, float]] = {
    "": ("steps", 1),
    "step": ("steps", 1),
    "steps": ("steps", 1),
    "epoch": ("epochs", 1),
    "epochs": ("epochs", 1),
    "second": ("minutes", 1 / 60),
    "seconds": ("minutes", 1 / 60),
    "minute": ("minutes", 1),
    "minutes": ("minutes", 1),
    "hour": ("minutes", 60),
    "hours": ("minutes", 60),
}


_LARGEST = 1 << 53  # of whole numbers; float() fails beyond 1e308


@dataclass(frozen=True)
class Interval:
    """A count above 0 of steps (whole), epochs or minutes; or never, whose count is 0. False when never."""

    count: float
    unit: Unit

    def __post_init__(self) -> None:
        if self.unit == "never":
            if self.count != 0:
                raise ValueError("never has no count")
        elif not (math.isfinite(self.count) and self.count > 0):
            raise ValueError("the count must be above 0; use never to switch it off")
        elif self.unit == "steps" and self.count != int(self.count):
            raise ValueError("steps are counted in whole numbers")

    @classmethod
    def never(cls) -> Interval:
        """The interval that never elapses."""
        return cls(0.0, "never")

    @classmethod
    def parse(cls, value: object) -> Interval:
        """Read "200 steps", "1 epoch", "30 minutes", "2 hours", "never", or a plain number of steps.

        Raises ValueError for anything else.
        """
        if isinstance(value, Interval):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) >= _LARGEST:
                raise ValueError("not an interval")
            return cls(float(value), "steps")
        if not isinstance(value, str):
            raise ValueError("not an interval")
        if value.strip().lower() == "never":
            return cls.never()
        found = _TEXT.fullmatch(value)
        if found is None or found["unit"].lower() not in _UNITS:
            raise ValueError("not an interval")
        unit, factor = _UNITS[found["unit"].lower()]
        return cls(float(found["count"]) * factor, unit)

    def __bool__(self) -> bool:
        return self.unit != "never"

    def __str__(self) -> str:
        if self.unit == "never":
            return "never"
        count = str(int(self.count)) if self.count == int(self.count) else repr(self.count)
        return f"{count} {self.unit.removesuffix('s') if count == '1' else self.unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema(when_used="always")
        )
