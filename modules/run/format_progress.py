"""Sizes and progress as text: "1.2 GB", "3 of 9", "1.2 of 6.9 GB"."""

from __future__ import annotations

from typing import Final

BYTES: Final = "bytes"  # the `unit` of a phase event
_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def format_bytes(count: float) -> str:
    """Such as 1.2 GB."""
    size, name = next((each for each in _UNITS if count >= each[0]), _UNITS[-1])
    return f"{count / size:.{0 if size == 1 or count >= 100 * size else 1}f} {name}"


def format_progress(done: int, total: int, unit: str = "") -> str:
    """`done` of `total` as text; `unit` is BYTES, or empty for plain counts."""
    if unit != BYTES:
        return f"{done:,} of {total:,}"
    size, name = next((each for each in _UNITS if total >= each[0]), _UNITS[-1])
    digits = 1 if size > 1 else 0
    return f"{done / size:.{digits}f} of {total / size:.{digits}f} {name}"
