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
        module = f"app.sections.{name}"
        if module not in sys.modules:
            imported: list[object] = []
            background.run(lambda module=module: importlib.import_module(module), imported.append)  # type: ignore[misc]
            while not imported:
                yield
        if name in built:
            continue
        section = build(name)
        yield
        if hasattr(section, "prepare"):
            yield from section.prepare()
