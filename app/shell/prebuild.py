"""Prepares sections before their first visit: builds them hidden, with their fields."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.background import Background


def prepare_sections(
    names: Sequence[str], built: Mapping[str, Any], build: Callable[[str], Any], background: Background
) -> Iterator[None]:
    """Build the sections that are not in `built`, in steps of some milliseconds; modules are imported in a thread."""
    for name in names:
        yield from import_module(f"app.sections.{name}", background)
        if name in built:
            continue
        section = build(name)
        yield
        if hasattr(section, "prepare"):
            yield from section.prepare()


def import_module(name: str, background: Background) -> Iterator[None]:
    """Import a module in a thread; the last step is after that."""
    if name not in sys.modules:
        imported: list[object] = []
        background.run(lambda: importlib.import_module(name), imported.append)
        while not imported:
            yield
