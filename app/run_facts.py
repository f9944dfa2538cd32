"""What the events of a run say, one dataclass for each kind, and how their fields are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_LONGEST_TEXT: Final = 4000


@dataclass(frozen=True)
class Step:
    """The last step that was told; a figure that was missing or no number is None."""

    step: int
    time: float
    epoch: int | None = None
    loss: float | None = None
    lr: float | None = None
    samples_per_s: float | None = None
    grad_norm: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True)
class Phase:
    """What the run does now, `done` of `total` where it is counted, in bytes where `unit` says so."""

    name: str
    time: float
    done: int | None = None
    total: int | None = None
    unit: str = ""


@dataclass(frozen=True)
class Facts:
    """What the `started` event says."""

    time: float
    config: Mapping[str, object] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    backend: str = ""
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    learning_rate: float | None = None
    host: str = ""


@dataclass(frozen=True)
class SampleFile:
    """A picture that was drawn."""

    file: str
    prompt: str
    step: int
    number: int  # its place in the run, so that the same picture of a later draw is another one


@dataclass(frozen=True)
class Message:
    """A warning, an error or a note about a backup."""

    time: float
    kind: str
    text: str
    advice: str = ""
    rank: int | None = None
    host: str = ""
    failure: str = ""  # of an error: its kind


@dataclass(frozen=True)
class Finished:
    """How the run says that it ended."""

    reason: str
    exit_code: int | None
    time: float


@dataclass
class Spread:
    """Mean and highest value of a figure over the run."""

    count: int = 0
    total: float = 0.0
    highest: float = -math.inf

    def add(self, value: float) -> None:
        """One more value."""
        self.count += 1
        self.total += value
        self.highest = max(self.highest, value)

    @property
    def mean(self) -> float:
        """The mean; nan without a value."""
        return self.total / self.count if self.count else math.nan


def number(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def whole(value: object) -> int | None:
    """A whole number of at least 0; None for anything else."""
    real = number(value)
    return int(real) if real is not None and 0 <= real < 2**62 else None


def text(value: object) -> str:
    """Text of a bearable length; empty for anything else."""
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def rank_row(row: object) -> dict[str, float | str]:
    if not isinstance(row, dict):
        return {}
    kept: dict[str, float | str] = {}
    for name, value in list(row.items())[:40]:
        real = number(value)
        if real is not None:
            kept[str(name)] = real
        elif isinstance(value, str):
            kept[str(name)] = text(value)
    return kept
