"""The names that training scripts use for the same setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from modules.importers.rules import Table
from modules.importers.translation import flatten

# Section -> other names of it.
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "parallel": ("distributed", "ddp", "parallelism"),
    "data": ("dataset", "data_loader", "dataloader"),
    "model": ("arch", "network"),
    "training": ("train", "trainer"),
    "optimizer": ("optim",),
    "scheduler": ("lr_scheduler",),
    "validation": ("val", "valid", "evaluation", "eval"),
    "testing": ("test",),
    "early_stopping": ("early_stop", "earlystopping", "early_stopper"),
    "checkpoint": ("checkpoints", "checkpointing"),
    "logging": ("log", "logger"),
    "experiment": ("exp",),
}
_SECTION_OF: Final = {other: name for name, others in SECTIONS.items() for other in (name, *others)}
_WRAPPERS: Final = frozenset({"args", "params", "kwargs"})  # as in optimizer: {type: Adam, args: {lr: 0.001}}


def present_sections(data: Mapping[object, object]) -> set[str]:
    """The sections of these settings that are groups."""
    groups = (str(name) for name, value in data.items() if isinstance(value, Mapping))
    return {_SECTION_OF[name] for name in groups if name in _SECTION_OF}


def canonical(data: Mapping[str, object], table: Table) -> Iterator[tuple[str, str, object]]:
    """(the table's name, the name in the file, the value) of each setting, in the order of the file."""
    for written, value in flatten(data).items():
        parts = [part for part in written.lower().split(".") if part not in _WRAPPERS]
        parts[0:1] = [_SECTION_OF.get(part, part) for part in parts[0:1]] if len(parts) > 1 else parts[0:1]
        name = ".".join(parts)
        yield table.renamed.get(name, name), written, value
