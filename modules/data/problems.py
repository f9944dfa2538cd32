"""What is wrong with single files: collected and reported, never raised, so that one bad picture stops
nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """One file and what is wrong with it, in words for the person who owns the pictures."""

    path: str
    what: str

    def line(self) -> str:
        """`path: what` on one line, printable whatever bytes the file name holds."""
        readable = self.path.encode("utf-8", "backslashreplace").decode("utf-8")
        return f"{readable}: {self.what}".replace("\r", "\\r").replace("\n", "\\n")


def write_problems(problems: Iterable[Problem], path: Path) -> None:
    """Write one line per problem to `path`; no file is left where there are none."""
    lines = [problem.line() for problem in problems]
    if not lines:
        path.unlink(missing_ok=True)
        return
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
