from __future__ import annotations

import re

from modules import ROOT
from scripts import settings_reference


def test_the_committed_reference_is_up_to_date() -> None:
    """In this process: another would import torch for the families' options."""
    page = ROOT / "docs" / settings_reference.PAGE
    assert page.read_text(encoding="utf-8") == settings_reference.render(), "run python scripts/settings_reference.py"
    rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != 5] == [], "a bar in a text ends its cell"
