"""Comparable statistics of a run's processes: breakdown of the step time, and the straggler if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from modules.run.view.rank_summary import MetricSummary
from modules.run.view.run_view import RunView

STRAGGLER_RATIO: Final = 1.2  # times the median step
MAX_DATA_WAIT_SHARE: Final = 0.3  # of the step time

# the fields of the `ranks` event, in the order in which they are drawn
PHASES: Final = ("data_s", "forward_s", "backward_s", "sync_s", "optimizer_s", "logging_s")

Row = Mapping[str, float | str]


@dataclass(frozen=True)
class Gauge:
    """One metric of a process: current, mean and highest value, and how full its bar is (0 to 1, None: no bar)."""

    now: float
    mean: float
    maximum: float
    fill: float | None = None


@dataclass(frozen=True)
class RankStats:
    """One process. `parts` are seconds by name; `slowness` is its own step time relative to the median."""

    rank: int
    host: str
    device: str
    step_s: float | None
    mean_step_s: float
    parts: Mapping[str, float]
    gauges: Mapping[str, Gauge]
    slowness: float
    data_wait_share: float
    is_straggler: bool = False
    held_back: str = ""  # what holds the clocks of its GPU back, or why its driver does not answer


def rank_stats(view: RunView) -> list[RankStats]:
    """The latest statistics of every process; takes the view's lock."""
    with view.lock:
        rows = [dict(row) for row in view.ranks]
        rank_summaries = view.rank_summaries
        devices = view.run_info.devices if view.run_info is not None else ()
        host = "" if view.run_info is None else view.run_info.host
    local = [_local_time(row) for row in rows]
    typical = median([each for each in local if each > 0]) if any(each > 0 for each in local) else 0.0
    slowest = max(local, default=0.0)
    shares = [_number(row, "samples") or 0.0 for row in rows]
    samples = sum(shares) if max(shares, default=0.0) - min(shares, default=0.0) > 1 else 0.0  # equal ones say nothing
    found = []
    for rank, row in enumerate(rows):
        step_s = _number(row, "step_s")
        slowness = local[rank] / typical if typical else 1.0
        found.append(
            RankStats(
                rank,
                str(row.get("host") or host),
                devices[rank] if rank < len(devices) else "",
                step_s,
                rank_summaries[rank].get("step_s", MetricSummary()).mean,
                _parts(row, step_s),
                _gauges(row, rank_summaries[rank], samples),
                slowness,
                min(1.0, (_number(row, "data_s") or 0.0) / step_s) if step_s else 0.0,
                len(rows) > 1 and local[rank] == slowest and slowness >= STRAGGLER_RATIO,
                str(row.get("fault") or row.get("slowdown") or ""),
            )
        )
    return found


def _local_time(row: Row) -> float:
    """Seconds of a step without gradient sync, during which fast processes wait for slow ones."""
    local = _number(row, "own_s")
    return (_number(row, "step_s") or 0.0) if local is None else local


def _parts(row: Row, step_s: float | None) -> dict[str, float]:
    """Seconds of a step by phase; of runs before 0.2: waiting for data, computing, and the rest."""
    if not step_s:
        return {}
    if _number(row, "forward_s") is not None:
        return {name: seconds for name in PHASES if (seconds := min(_number(row, name) or 0.0, step_s)) > 0}
    data, local = min(_number(row, "data_s") or 0.0, step_s), min(_local_time(row), step_s)
    parts = {"data_s": data, "computing": max(0.0, local - data), "waiting": max(0.0, step_s - max(local, data))}
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def _gauges(row: Row, rank_summaries: Mapping[str, MetricSummary], samples: float) -> dict[str, Gauge]:
    """`samples` are those of a step, if the processes share it unequally."""
    total = _number(row, "memory_total_mib")
    limits: dict[str, float | None] = {
        **({"samples": samples} if samples else {}),
        "peak_percent": 100.0,
        "utilization_percent": 100.0,
        "memory_used_mib": total,
        "temperature_c": 100.0,
        "power_w": _number(row, "power_limit_w"),
        "sm_clock_mhz": _number(row, "sm_clock_max_mhz"),
        "reserved_mib": total,
        "cpu_percent": 100.0,
        "ram_used_mib": None,
        "process_cpu_percent": None,
        "process_ram_mib": None,
        "disk_read_mb_s": None,
        "network_sent_mb_s": None,
        "memory_efficiency_percent": 100.0,
    }
    found = {}
    for name, limit in limits.items():
        value = _number(row, name)
        if value is not None:
            summary = rank_summaries.get(name, MetricSummary())
            fill = min(1.0, max(0.0, value / limit)) if limit else None
            found[name] = Gauge(value, summary.mean, summary.maximum, fill)
    return found


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, float) else None


def findings(stats: Sequence[RankStats]) -> list[tuple[str, int, float]]:
    """Anomalies: ("straggler", rank, times the median) and ("data_wait", rank, share of the step time)."""
    found = [("straggler", each.rank, each.slowness) for each in stats if each.is_straggler]
    slowest = max(stats, key=lambda each: each.data_wait_share, default=None)
    if slowest is not None and slowest.data_wait_share >= MAX_DATA_WAIT_SHARE:
        found.append(("data_wait", slowest.rank, slowest.data_wait_share))
    return found
