"""Problems with single files: collected and reported, never raised, so that one bad image stops nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.files import open_for_writing, printable

_LONGEST_LINE: Final = 10_000  # characters; a path has up to 4096 bytes


@dataclass(frozen=True)
class Problem:
    """One file and what is wrong with it, in plain words for the owner of the images."""

    path: str
    what: str

    def line(self) -> str:
        """`path: what` on one line, printable for any bytes in the file name."""
        return printable(f"{self.path}: {self.what}", _LONGEST_LINE)


def write_problems(problems: Iterable[Problem], path: Path) -> None:
    """Write one line per problem to `path`; without problems, remove the file."""
    lines = [problem.line() for problem in problems]
    if not lines:
        path.unlink(missing_ok=True)
        return
    with os.fdopen(open_for_writing(path), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
