"""What the processes of a run tell of themselves, made comparable: where a step's time goes, and who is slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from app.run_facts import Spread
from app.run_view import RunView

# In the order in which they happen in a step.
PARTS: Final = ("data_s", "computing", "waiting")
SLOW: Final = 1.2  # times the median of all
STARVING: Final = 0.3  # of a step spent waiting for the loader

Row = Mapping[str, float | str]


@dataclass(frozen=True)
class Gauge:
    """One figure of a process: now, on average, at most, and how full its bar is (None: no bar)."""

    now: float
    mean: float
    highest: float
    fill: float | None = None


@dataclass(frozen=True)
class RankFigures:
    """One process. `parts` are seconds by name; `slowness` is its step against the median."""

    rank: int
    host: str
    device: str
    step_s: float | None
    mean_step_s: float
    parts: Mapping[str, float]
    gauges: Mapping[str, Gauge]
    slowness: float
    starvation: float
    is_straggler: bool = False


def rank_figures(view: RunView) -> list[RankFigures]:
    """All processes as they told of themselves last; takes the view's lock."""
    with view.lock:
        rows = [dict(row) for row in view.ranks]
        spreads = [dict(each) for each in view.spreads]
        devices = view.facts.devices if view.facts is not None else ()
        host = "" if view.facts is None else view.facts.host
    own = [_own_time(row) for row in rows]
    typical = median([each for each in own if each > 0]) if any(each > 0 for each in own) else 0.0
    slowest = max(own, default=0.0)
    found = []
    for rank, row in enumerate(rows):
        step_s = _number(row, "step_s")
        slowness = own[rank] / typical if typical else 1.0
        found.append(
            RankFigures(
                rank,
                str(row.get("host") or host),
                devices[rank] if rank < len(devices) else "",
                step_s,
                spreads[rank].get("step_s", Spread()).mean,
                _parts(row, step_s),
                _gauges(row, spreads[rank]),
                slowness,
                (_number(row, "data_s") or 0.0) / step_s if step_s else 0.0,
                len(rows) > 1 and own[rank] == slowest and slowness >= SLOW,
            )
        )
    return found


def _own_time(row: Row) -> float:
    """A step without the waiting for others, which makes all processes look alike."""
    own = _number(row, "own_s")
    return (_number(row, "step_s") or 0.0) if own is None else own


def _parts(row: Row, step_s: float | None) -> dict[str, float]:
    """Waiting for data, computing, and what remains of the step: waiting for the others and applying the gradients."""
    if not step_s:
        return {}
    data, own = min(_number(row, "data_s") or 0.0, step_s), min(_own_time(row), step_s)
    parts = {"data_s": data, "computing": max(0.0, own - data), "waiting": max(0.0, step_s - max(own, data))}
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def _gauges(row: Row, spreads: Mapping[str, Spread]) -> dict[str, Gauge]:
    total = _number(row, "memory_total_mib")
    full: dict[str, float | None] = {
        "utilization_percent": 100.0,
        "memory_used_mib": total,
        "temperature_c": 100.0,
        "power_w": None,
        "cpu_percent": 100.0,
        "ram_used_mib": None,
    }
    found = {}
    for name, most in full.items():
        value = _number(row, name)
        if value is not None:
            spread = spreads.get(name, Spread())
            fill = min(1.0, max(0.0, value / most)) if most else None
            found[name] = Gauge(value, spread.mean, spread.highest, fill)
    return found


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, float) else None


def sentences(figures: Sequence[RankFigures]) -> list[tuple[str, int, float]]:
    """What stands out: ("slow", rank, times the median) and ("starving", rank, share of its steps)."""
    found = [("slow", each.rank, each.slowness) for each in figures if each.is_straggler]
    starving = max(figures, key=lambda each: each.starvation, default=None)
    if starving is not None and starving.starvation >= STARVING:
        found.append(("starving", starving.rank, starving.starvation))
    return found
