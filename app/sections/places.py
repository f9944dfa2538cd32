"""Where the window shows a setting: its section, and its place in reading order, which Tab follows, too."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from app.sections import SECTIONS
from modules.config import Fault, Option, TrainConfig, find_option
from modules.config.options import generalise

if TYPE_CHECKING:
    from app.sections.form_section import FormSection

SECTION_OF: Final[Mapping[str, str]] = {
    "Model": "model",
    "Data": "data",
    "Training": "training",
    "Memory": "training",
    "Optimizer": "training",
    "Adapters": "adapters",
    "Multi-GPU": "multi_gpu",
    "Sampling": "sampling",
    "Output": "output",
}
_LAST: Final = 1_000_000


def section_of(path: str) -> str:
    """The section of the window that holds a setting."""
    option = find_option(TrainConfig, path)
    first = (
        option or find_option(TrainConfig, path.split(".")[0]) or find_option(TrainConfig, f"{path.split('.')[0]}.name")
    )
    return SECTION_OF.get(first.section, "model") if first else "model"


def in_order(faults: Iterable[Fault], family_options: Iterable[Option] = ()) -> list[Fault]:
    """The faults in the order of the window's sections and fields; of a list, those of its first item first."""
    of_family = {option.path: number for number, option in enumerate(family_options)}
    return sorted(faults, key=lambda fault: _place(fault.path, of_family))


def _place(path: str, of_family: Mapping[str, int]) -> tuple[int, ...]:
    """Section, column, item of a list, and number of the field."""
    section, parts = section_of(path), path.split(".")
    places, known = _places(section), generalise(path)
    while known and known not in places:
        known = known.rpartition(".")[0]
    column, field = places.get(known, (0, _LAST + of_family.get(path, len(of_family))))  # those of a family come last
    item = int(parts[1]) if ".*." in known else -1
    return list(SECTIONS).index(section), column, item, field


@cache
def _places(section: str) -> dict[str, tuple[int, int]]:
    """The column of each setting, with a star for an item of a list, and its number in the section."""
    kind: type[FormSection] = importlib.import_module(f"app.sections.{section}").Section
    found = dict[str, tuple[int, int]]()
    for path, column in _shown(kind):
        found.setdefault(path, (column, len(found)))
    return found


def _shown(kind: type[FormSection]) -> Iterator[tuple[str, int]]:
    """The settings of a section and their columns, as it adds them."""
    from app.sections.form_section import complete

    if kind.items:
        yield kind.items, 0
    for each in kind.item_cards:
        yield from ((f"{kind.items}.*.{path}", each.column) for path in each.paths)
    for each in complete(kind.cards, kind.declared_in):
        yield from ((path, each.column) for path in each.paths)
