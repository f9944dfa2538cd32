"""The result of an import: which settings were imported, imported with a different meaning, or not imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from modules.config.explain import format_value
from modules.config.train_config import TrainConfig
from modules.files import printable

PROBLEMS: Final = "To be set before it can start"


@dataclass(frozen=True)
class ImportEntry:
    """One setting of the other trainer (or several that belong together) and its result.

    `target` is the path of Tandem's setting and `new_value` its value; empty and None if it was not imported.
    `given` is false if the file does not contain the setting and the trainer's default, which differs from Tandem's,
    was imported.
    """

    source: str
    value: object
    target: str = ""
    new_value: object = None
    why: str = ""
    given: bool = True

    def __str__(self) -> str:
        """One line: "network_dim 16 -> lora_rank 16"."""
        source = f"{self.source} {format_value(self.value)}{'' if self.given else ' (default there)'}"
        target = f" -> {self.target} {format_value(self.new_value)}" if self.target else ""
        return printable(f"{source}{target}{f': {self.why}' if self.why else ''}")


@dataclass(frozen=True)
class ImportReport:
    """The three lists; every setting that is not at the other trainer's default is in one of them.

    `problems` are sentences about what keeps the config from starting as it is, as the import and a dry run found.
    """

    trainer: str
    files: tuple[Path, ...]
    imported: tuple[ImportEntry, ...]
    changed: tuple[ImportEntry, ...]
    not_imported: tuple[ImportEntry, ...]
    problems: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report as lines of text: headings, each with its entries; empty groups are omitted."""
        lines = [f"Settings of {self.trainer}, from {', '.join(str(file) for file in self.files)}"]
        groups: tuple[tuple[str, Sequence[object]], ...] = ((PROBLEMS, self.problems), *self.groups())
        for heading, entries in groups:
            if entries:
                lines += ["", f"{heading} ({len(entries)})", *(f"  {entry}" for entry in entries)]
        return lines

    def groups(self) -> Sequence[tuple[str, tuple[ImportEntry, ...]]]:
        """The lists with their headings, the most important first."""
        return (
            ("Not imported", self.not_imported),
            ("Imported with a different meaning", self.changed),
            ("Imported", self.imported),
        )


@dataclass(frozen=True)
class ImportResult:
    """The config converted from another trainer's settings, and the report."""

    config: TrainConfig
    report: ImportReport

    def with_problems(self, problems: Sequence[str]) -> ImportResult:
        """The same with what a dry run of the config has found as well."""
        return replace(self, report=replace(self.report, problems=(*self.report.problems, *problems)))
