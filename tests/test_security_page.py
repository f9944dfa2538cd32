"""The table of inputs in SECURITY.md: its places exist, and it has every kind that the fuzzers know."""

from __future__ import annotations

import re
from datetime import date

from modules import ROOT
from tests.torture.kinds import KINDS


def rows() -> list[list[str]]:
    """The cells of each input."""
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| Input | Read by |"))
    table = lines[start + 2 :]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[: table.index("")]]


def test_what_reads_and_what_proves_exists() -> None:
    assert len(rows()) >= 15
    for what, readers, promised, tests, _ in rows():
        named = re.findall(r"`([^`]+)`", f"{readers} {tests}")
        assert promised
        assert any(name.startswith("tests/") for name in named), f"nothing proves what is said of: {what}"
        assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_kind_of_the_fuzzers_has_a_date() -> None:
    fuzzed = [each for row in rows() for each in re.findall(r"`(\w+)` (\d{4}-\d\d-\d\d)", row[-1])]
    assert {name for name, _ in fuzzed} == KINDS.keys()
    assert all(date.fromisoformat(day) >= date(2026, 11, 22) for _, day in fuzzed)
