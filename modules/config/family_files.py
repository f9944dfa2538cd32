"""Which model families are built in: one file each in modules/families. For the window as well, which imports none."""

from __future__ import annotations

from typing import Final

from modules import ROOT

FAMILIES_DIR: Final = ROOT / "modules" / "families"
PROGRAM: Final = "program"  # the family of runs that a user's own program has started (modules/library)
_COMMAND: Final = "describe"  # `python -m modules.families.describe`, the only public file that is not a family


def family_names() -> list[str]:
    """The names of the built-in families; files that start with an underscore are not families."""
    stems = (file.stem for file in FAMILIES_DIR.glob("*.py") if not file.name.startswith("_"))
    return sorted(stem for stem in stems if stem != _COMMAND)
