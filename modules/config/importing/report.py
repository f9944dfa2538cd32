"""What became of another trainer's settings: taken, changed in meaning, or not carried over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.explain import show
from modules.config.train_config import TrainConfig


@dataclass(frozen=True)
class Entry:
    """One setting of theirs (or several that belong together) and what became of it.

    `ours` is the path of our setting and `becomes` its value; empty and None where nothing of it was carried over.
    `given` is false where the file says nothing and their default, which differs from ours, was taken.
    """

    theirs: str
    value: object
    ours: str = ""
    becomes: object = None
    why: str = ""
    given: bool = True

    def __str__(self) -> str:
        """One line: "network_dim 16 -> lora_rank 16"."""
        source = f"{self.theirs} {show(self.value)}{'' if self.given else ' (their default)'}"
        target = f" -> {self.ours} {show(self.becomes)}" if self.ours else ""
        return f"{source}{target}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True)
class ImportReport:
    """The three lists; every setting of theirs that is not their default stands in one of them."""

    trainer: str
    files: tuple[Path, ...]
    taken: tuple[Entry, ...]
    changed: tuple[Entry, ...]
    lost: tuple[Entry, ...]

    def lines(self) -> list[str]:
        """The report as text, a heading and its entries at a time; a group without entries is left out."""
        lines = [f"Settings of {self.trainer}, from {', '.join(str(file) for file in self.files)}"]
        for heading, entries in self.groups():
            if entries:
                lines += ["", f"{heading} ({len(entries)})", *(f"  {entry}" for entry in entries)]
        return lines

    def groups(self) -> Sequence[tuple[str, tuple[Entry, ...]]]:
        """The lists with their headings, in the order in which people want to read them."""
        return (("Not carried over", self.lost), ("Changed in meaning", self.changed), ("Taken over", self.taken))


@dataclass(frozen=True)
class Imported:
    """A config made of another trainer's settings, and what became of each of them."""

    config: TrainConfig
    report: ImportReport
