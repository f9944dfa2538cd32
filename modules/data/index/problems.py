"""Problems with single files: collected and reported, never raised, so that one bad image stops nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from modules.files import open_for_writing


@dataclass(frozen=True)
class Problem:
    """One file and what is wrong with it, in plain words for the owner of the images."""

    path: str
    what: str

    def line(self) -> str:
        """`path: what` on one line, printable for any bytes in the file name."""
        readable = self.path.encode("utf-8", "backslashreplace").decode("utf-8")
        return f"{readable}: {self.what}".replace("\r", "\\r").replace("\n", "\\n")


def write_problems(problems: Iterable[Problem], path: Path) -> None:
    """Write one line per problem to `path`; without problems, remove the file."""
    lines = [problem.line() for problem in problems]
    if not lines:
        path.unlink(missing_ok=True)
        return
    with os.fdopen(open_for_writing(path), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
