"""The figures of a benchmark beside their targets, printed at its end; its exit code says whether all were met."""

from __future__ import annotations

import sys
from typing import NoReturn


class Targets:
    """What was measured, in the order in which it was."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._missed = 0

    def at_least(self, name: str, value: float, target: float) -> None:
        """A figure that is the better the greater it is."""
        self._add(name, value, f"at least {target:g}", is_met=value >= target)

    def at_most(self, name: str, value: float, target: float) -> None:
        """A figure that is the better the smaller it is."""
        self._add(name, value, f"at most {target:g}", is_met=value <= target)

    def end(self) -> NoReturn:
        """Print them and leave, with 1 if one was missed."""
        if self._lines:
            print("\nTargets")
        for line in self._lines:
            print(f"  {line}")
        sys.exit(1 if self._missed else 0)

    def _add(self, name: str, value: float, bound: str, *, is_met: bool) -> None:
        self._missed += not is_met
        self._lines.append(f"{name:<64}{value:>10.4g}  {bound}: {'met' if is_met else 'MISSED'}")
