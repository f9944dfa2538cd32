"""Amounts of memory are rounded to what can be relied on."""

from __future__ import annotations

import pytest

from modules.run.format_memory import format_memory


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 MiB"), (200_000, "under 1 MiB"), (5_600_000, "5 MiB"), (350 << 20, "350 MiB"), (1 << 30, "1.0 GiB"),
     (int(7.46 * 2**30), "7.5 GiB"), (120 << 30, "120 GiB")],
)  # fmt: skip
def test_memory_is_rounded(size: int, shown: str) -> None:
    assert format_memory(size) == shown
