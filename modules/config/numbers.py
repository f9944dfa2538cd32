"""Numbers as text: for people, with thousands separated; and plain, as they are typed and written to files."""

from __future__ import annotations

import math
from typing import Final

_GROUPED_FROM: Final = 10_000  # shorter numbers are read at a glance: 1024 pixels


def format_number(value: float) -> str:
    """A number in a sentence: 0.5, 1e-5, 4096, 1,000,000."""
    text = plain_number(value)
    if "e" in text or not _GROUPED_FROM <= abs(value) < math.inf:
        return text
    whole, point, decimals = text.partition(".")
    return f"{int(whole):,}{point}{decimals}"


def plain_number(value: float) -> str:
    """A number as typed: 0.5, 1e-5, 1000000."""
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    mantissa, e, exponent = repr(value).partition("e")
    if e:
        return f"{mantissa}e{int(exponent)}"
    if abs(value) < 0.001:
        mantissa, _, exponent = f"{value:e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return text if float(text) == value else repr(value)
    return mantissa
