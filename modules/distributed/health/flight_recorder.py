"""Reads torch's flight recorder: which collectives this rank has started, and which are still pending."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from modules.torch_compat import FLIGHT_RECORDERS

# The last few of each group are compared between ranks; no rank can be further ahead of another.
_KEPT_PER_GROUP = 6


@dataclass(frozen=True)
class Collective:
    """One collective as this rank started it; `number` counts within its group and is the same on all ranks."""

    group: str
    number: int
    name: str
    sizes: str
    pending: bool
    started: float  # seconds since 1970
    timeout_s: float

    def __str__(self) -> str:
        return f"{self.name} {self.number}"

    @property
    def signature(self) -> str:
        """Name and size, such as "all_reduce of [[3]] Float"."""
        return f"{self.name} of {self.sizes}" if self.sizes else self.name


def counters() -> str:
    """A text that changes whenever this rank starts or completes a collective; cheap."""
    return "".join(str(json.loads(dump(includeCollectives=False)).get("pg_status", "")) for dump in FLIGHT_RECORDERS)


def last_collectives() -> list[Collective]:
    """The last few of every group and all that are pending, oldest first."""
    found: dict[str, list[Collective]] = {}
    for collective in _recorded():
        found.setdefault(collective.group, []).append(collective)
    kept = []
    for group in found.values():
        kept += [each for each in group[:-_KEPT_PER_GROUP] if each.pending] + group[-_KEPT_PER_GROUP:]
    return sorted(kept, key=lambda each: each.started)


def _recorded() -> Iterator[Collective]:
    for dump in FLIGHT_RECORDERS:
        for entry in json.loads(dump()).get("entries", ()):
            if entry["is_p2p"]:
                continue  # involves only two ranks
            backend, _, name = str(entry["profiling_name"]).partition(":")
            sizes = f"{entry['input_sizes']} {' '.join(entry['input_dtypes'])}" if entry["input_sizes"] else ""
            yield Collective(
                group=f"{backend} {entry['process_group'][0]}",
                number=int(entry["collective_seq_id"]),
                name=name or backend,
                sizes=sizes,
                pending=not entry["retired"] and entry["state"] != "completed",
                started=entry["time_created_ns"] / 1e9,
                timeout_s=entry["timeout_ms"] / 1e3,
            )
