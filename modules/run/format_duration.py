"""A time span as text: "40 s", "30 minutes", "2 hours 5 minutes" in sentences; "30 min", "2 h 05 min" in tables."""

from __future__ import annotations

from typing import Final, Literal

_IN_SECONDS: Final = 120  # below, a span is in seconds


def in_words(seconds: float) -> str:
    """For a sentence: in seconds below two minutes, else in the largest unit that fits and the next smaller one."""
    unit, count, rest = _rounded(seconds)
    if unit == "second":
        return f"{count} s"
    words = _counted(count, unit)
    return f"{words} {_counted(rest, _SMALLER[unit])}" if rest else words


def format_duration(seconds: float) -> str:
    """For a table: "45 s", "3 min", "2 h 05 min", "4 d 3 h"."""
    unit, count, rest = _rounded(seconds)
    if unit == "second":
        return f"{count} s"
    if unit == "minute":
        return f"{count} min"
    return f"{count} h {rest:02d} min" if unit == "hour" else f"{count} d {rest} h"


Unit = Literal["second", "minute", "hour", "day"]
_SMALLER: Final[dict[Unit, Unit]] = {"day": "hour", "hour": "minute"}


def _rounded(seconds: float) -> tuple[Unit, int, int]:
    """The largest unit that fits, how many of it, and how many of the next smaller one, to the nearest."""
    whole = max(0, round(seconds))
    minutes, hours = (whole + 30) // 60, (whole + 1800) // 3600
    if whole < _IN_SECONDS:
        return "second", whole, 0
    if minutes < 60:
        return "minute", minutes, 0
    if minutes < 24 * 60:
        return "hour", *divmod(minutes, 60)
    return "day", *divmod(hours, 24)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
