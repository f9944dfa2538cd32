"""The result of a preflight: one coloured cell per finding, advice for each red one, and a verdict. Torch-free."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from modules.files import decode_json, replacing, validate_record
from modules.run.exit_codes import FAILED, FINISHED

Colour = Literal["green", "yellow", "red", "grey"]
_LABELS: Final[dict[Colour, str]] = {"green": "ok", "yellow": "note", "red": "RED", "grey": "-"}


@dataclass(frozen=True)
class Cell:
    """One finding: what was checked, on which hosts or ranks, the result, and advice if it is not green."""

    check: str
    where: str
    colour: Colour
    value: str
    advice: str = ""

    def lines(self) -> list[str]:
        """As text, before it is known how wide the others are."""
        line = f"{_LABELS[self.colour]:<4}  {self.check:<14}  {self.where}: {self.value}"
        return [line, *([f"      -> {self.advice}"] if self.advice else [])]


@dataclass(frozen=True)
class OtherMachine:
    """A machine that the preflight waits for: its number, and the command to run there, in Tandem's folder."""

    node_rank: int
    command: str


@dataclass(frozen=True)
class PreflightReport:
    """All findings of one preflight, and matrices (title, lines) to show below them."""

    title: str
    cells: tuple[Cell, ...] = ()
    matrices: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())
    complete: bool = False  # whether every check was done
    waits_for: tuple[OtherMachine, ...] = ()  # before the first check
    needs_token: bool = False  # whether the commands there need the join token, which is never in a report
    joining: tuple[str, ...] = ()  # messages about the machines that join, oldest first

    @property
    def reds(self) -> list[Cell]:
        """The findings that must be fixed before a run."""
        return [cell for cell in self.cells if cell.colour == "red"]

    @property
    def verdict(self) -> str:
        """One sentence."""
        notes = len([cell for cell in self.cells if cell.colour == "yellow"])
        noted = f" ({notes} note{'s' if notes > 1 else ''})" if notes else ""
        if not self.reds:
            return f"Ready to train{noted}."
        names = ", ".join(dict.fromkeys(f"{cell.check} ({cell.where})" for cell in self.reds))
        return f"NOT ready: {names}."

    @property
    def exit_code(self) -> int:
        """0 without a red cell, else 3."""
        return FAILED if self.reds else FINISHED

    def with_cells(self, cells: Iterable[Cell]) -> PreflightReport:
        """A copy with more findings."""
        return replace(self, cells=(*self.cells, *cells))

    def lines(self, width: int) -> list[str]:
        """The report as text for a terminal of `width` columns."""
        table = _table(
            [["check", "where", "", "result"], *map(_row, self.cells)], [c.advice for c in self.cells], width
        )
        return [self.title, "", *table, *self.end(width)]

    def end(self, width: int = 100) -> list[str]:
        """What stands below the findings: the matrices and the verdict."""
        below = [line for title, rows in self.matrices for line in ("", title, *(f"  {row}" for row in rows))]
        return [*below, "", *textwrap.wrap(self.verdict, width)]

    def dump(self) -> str:
        """The report as JSON, including verdict and exit code."""
        return json.dumps({**asdict(self), "verdict": self.verdict, "exit_code": self.exit_code}, indent=1)

    @classmethod
    def parse(cls, text: str) -> PreflightReport:
        """Parse the output of `dump`. Raises FileFault if it is none."""
        return validate_record(cls, decode_json(text))

    def save(self, path: Path) -> None:
        """Write `dump` atomically."""
        with replacing(path) as partial:
            partial.write_text(self.dump(), encoding="utf-8")


def _row(cell: Cell) -> list[str]:
    return [cell.check, cell.where, _LABELS[cell.colour], cell.value]


def _table(rows: Sequence[Sequence[str]], advice: Sequence[str], width: int) -> list[str]:
    """Aligned columns, the last one wrapped, with advice below its row."""
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    indent = sum(widths) + 3 * 2
    lines = []
    for row, hint in zip(rows, ["", *advice], strict=True):
        head = "  ".join(cell.ljust(size) for cell, size in zip(row[:3], widths, strict=True))
        wrapped = textwrap.wrap(row[3], max(24, width - indent)) or [""]
        lines.append(f"{head}  {wrapped[0]}".rstrip())
        lines += [" " * indent + line for line in wrapped[1:]]
        hinted = textwrap.wrap(f"-> {hint}", max(24, width - indent), subsequent_indent="   ") if hint else []
        lines += [" " * indent + line for line in hinted]
    return lines
