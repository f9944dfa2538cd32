"""Computed amounts of memory for people: rounded, because a program never takes exactly that."""

from __future__ import annotations

from typing import Final

_MIB: Final = 2**20
_GIB: Final = 2**30


def format_memory(count: int) -> str:
    """Bytes as GiB or MiB, such as 7.5 GiB or 340 MiB."""
    if count >= _GIB:
        return f"{count / _GIB:.{0 if count >= 100 * _GIB else 1}f} GiB"
    if count >= _MIB or count == 0:
        return f"{count / _MIB:.0f} MiB"
    return "under 1 MiB"
