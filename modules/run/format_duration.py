"""A time span as text: "40 s", "30 minutes", "2 hours 5 minutes" in sentences; "30 min", "2 h 05 min" in tables."""

from __future__ import annotations

from typing import Final

_IN_SECONDS: Final = 120  # up to here a sentence says seconds
_SIZES: Final = ((86_400, "day", 3600), (3600, "hour", 60), (60, "minute", 60))  # in s, name, unit of the rest in s


def in_words(seconds: float) -> str:
    """For a sentence: in seconds below two minutes, else in the largest unit that fits and the next smaller one."""
    whole = max(0, round(seconds))
    if whole < _IN_SECONDS:
        return f"{whole} s"
    whole = 60 * round(whole / 60)
    at = next(number for number, (size, _, _) in enumerate(_SIZES) if whole >= size)
    size, name, unit = _SIZES[at]
    count, rest = whole // size, whole % size // unit
    words = _counted(count, name)
    return f"{words} {_counted(rest, _SIZES[at + 1][1])}" if rest and at + 1 < len(_SIZES) else words


def format_duration(seconds: float) -> str:
    """For a table: "45 s", "3 min", "2 h 05 min", "4 d 3 h"."""
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 90:
        return f"{whole} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{days} d {hours % 24} h"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
