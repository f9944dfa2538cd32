"""The events of a run as dataclasses, and parsers for their fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from modules.files import encodable
from modules.run.view.rank_summary import MOST_METRICS

_MAX_TEXT_LENGTH: Final = 4000
_MAX_NAME_LENGTH: Final = 100
LEAST_FIGURE: Final = 1e-9
MAX_FIGURE: Final = 1e12  # of what a rank has measured: others are no measurements


@dataclass(frozen=True)
class Step:
    """A training step; metrics that are missing or not finite numbers are None."""

    step: int
    time: float
    epoch: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True)
class Phase:
    """The current phase; `done` of `total` if it is counted, in bytes if `unit` is "bytes"."""

    name: str
    time: float
    done: int | None = None
    total: int | None = None
    unit: str = ""


@dataclass(frozen=True)
class RunInfo:
    """The content of the `started` event."""

    time: float
    config: Mapping[str, object] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    total_steps: int | None = None
    host: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # name and value, as people read them
    versions: Mapping[str, str] = field(default_factory=dict)


FACTS: Final[Mapping[str, str]] = {
    "backend": "Backend",
    "trainable_parameters": "Trained parameters",
    "global_batch_size": "Effective batch",
    "steps_per_epoch": "Steps per epoch",
    "learning_rate": "Learning rate",
}  # field of the `started` event -> name


def parse_facts(event: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The fields of FACTS that a `started` event has."""
    found = []
    for field_name, name in FACTS.items():
        value = event.get(field_name)
        real = parse_float(value)
        text = parse_text(value) if real is None else f"{real:,.0f}" if isinstance(value, int) else f"{real:.4g}"
        if text:
            found.append((name, text))
    return tuple(found)


@dataclass(frozen=True)
class SampleFile:
    """A generated sample image."""

    file: str
    prompt: str
    step: int
    number: int  # its index in the run, so that a regenerated file counts as a new sample

    @property
    def is_custom(self) -> bool:
        """Whether somebody asked for it while the run trained; the name of its file says so."""
        return "-custom-" in PurePath(self.file).name


@dataclass(frozen=True)
class Message:
    """A warning or an error."""

    time: float
    kind: str
    text: str
    advice: str = ""
    rank: int | None = None
    host: str = ""
    failure: str = ""  # the kind of an error

    @property
    def origin(self) -> str:
        """The rank and its machine, such as "rank 1 on attic"; of a launcher the machine.

        Empty if unknown, or if the text says it.
        """
        names_rank = re.search(rf"\brank {self.rank}\b", self.text, re.IGNORECASE)
        if self.rank is None or names_rank or (self.host and self.text.startswith(self.host)):
            return ""
        if self.failure == "launcher" and self.host:
            return f"on {self.host}"
        return f"rank {self.rank} on {self.host}" if self.host else f"rank {self.rank}"


@dataclass(frozen=True)
class Finished:
    """The content of the `finished` event."""

    reason: str
    exit_code: int | None
    time: float


def parse_float(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def parse_int(value: object) -> int | None:
    """A non-negative integer; None for anything else."""
    real = parse_float(value)
    return int(real) if real is not None and 0 <= real < 2**62 else None


def parse_text(value: object) -> str:
    """Text, truncated if very long; empty for anything else."""
    return encodable(value[:_MAX_TEXT_LENGTH]) if isinstance(value, str) else ""


def parse_texts(value: object) -> dict[str, str]:
    """The texts of a dict, at most 40; empty for anything else."""
    if not isinstance(value, dict):
        return {}
    return {parse_text(name): text for name, each in list(value.items())[:40] if (text := parse_text(each))}


def parse_rank(row: object) -> dict[str, float | str]:
    """The numbers and texts of one rank, at most MOST_METRICS; empty for anything but a dict; without impossible
    numbers."""
    if not isinstance(row, dict):
        return {}
    fields: dict[str, float | str] = {}
    for given, value in list(row.items())[:MOST_METRICS]:
        name, real = parse_text(given)[:_MAX_NAME_LENGTH], parse_float(value)
        if real is not None and abs(real) < MAX_FIGURE:
            fields[name] = real if abs(real) >= LEAST_FIGURE else 0.0
        elif isinstance(value, str):
            fields[name] = parse_text(value)
    return fields
