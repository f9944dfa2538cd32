"""What a fuzzer of one kind of foreign input is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol


@dataclass(frozen=True)
class Places:
    """The folders of a worker: only `case` may be changed while a case is read."""

    seeds: Path  # small real files, written once
    outside: Path  # what a mutant would like to reach
    case: Path  # emptied before each case


class Kind(Protocol):
    """Makes mutants of a kind of input and reads them with the program's own readers."""

    def __init__(self, places: Places) -> None:
        """Write the seeds."""

    def make(self, draw: Random) -> None:
        """Write a mutant into `places.case`; a function of `draw` alone."""

    def read(self) -> str:
        """Read the mutant as the program does. Returns why it was refused or skipped; "" if it was accepted.

        TandemErrors are refusals, too; any other exception is a fault of the reader, and an AssertionError says that
        what was accepted is not valid.
        """
