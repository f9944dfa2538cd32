"""What the readings of all ranks come to: what a device does not offer, said once, and means and maxima at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from modules.run.view.rank_summary import PEAK_SHARE, MetricSummary, add_reading, is_peak_known

Reading: TypeAlias = Mapping[str, float | str | None]  # name with unit, for example cpu_percent -> value

# What a GPU may not report: title, unit and factor of the shown value.
GPU_METRICS: Final[Mapping[str, tuple[str, str, float]]] = {
    "utilization_percent": ("GPU load", "%", 1.0),
    "memory_used_mib": ("GPU memory", "GiB", 1 / 1024),
    "temperature_c": ("temperature", "°C", 1.0),
    "power_w": ("power", "W", 1.0),
    "sm_clock_mhz": ("clock", "MHz", 1.0),
    "slowdown": ("throttle reasons", "", 1.0),
}
_OTHERS: Final[Mapping[str, tuple[str, str, float]]] = {
    "model_tflops": ("model", "TFLOP/s", 1.0),
    "peak_percent": ("of the measured peak", "%", 1.0),
    "allocated_mib": ("allocated by torch", "GiB", 1 / 1024),
    "reserved_mib": ("reserved by torch", "GiB", 1 / 1024),
    "memory_efficiency_percent": ("memory efficiency", "%", 1.0),
    "process_cpu_percent": ("CPU of the process", "% of a core", 1.0),
    "process_ram_mib": ("RAM of the process", "GiB", 1 / 1024),
    "disk_read_mb_s": ("disk read", "MB/s", 1.0),
    "network_sent_mb_s": ("network sent", "MB/s", 1.0),
}
_MAX_LINES: Final = 8
_NOT_SUMMARISED: Final = frozenset(
    {
        "rank",
        "index",
        "samples",
        "memory_total_mib",
        "power_limit_w",
        "power_default_w",
        "sm_clock_max_mhz",
        "spills_to_host",
    }
)


class DeviceLog:
    """Follows the rows of the `ranks` events; memory does not grow with their number."""

    def __init__(self) -> None:
        self._sums: dict[int, dict[str, MetricSummary]] = {}
        self._said: set[tuple[int, str]] = set()

    def add(self, rank: int, reading: Reading, steps: int = 1) -> list[str]:
        """Count one reading of a rank, of so many steps; returns what has to be said of it for the first time."""
        sums = self._sums.setdefault(rank, {})
        for name, value in reading.items():
            if isinstance(value, (int, float)) and name not in _NOT_SUMMARISED:
                add_reading(sums, name, value, steps)
        fault = reading.get("fault")
        missing = [title for name, (title, *_) in GPU_METRICS.items() if reading.get(name, "") is None]
        if fault:
            text = f"The GPU of rank {rank} does not answer its driver ({fault}); its readings are missing."
            return self._once(rank, "fault", text)
        return self._once(rank, "missing", _missing_text(rank, missing)) if missing else []

    def summary(self) -> list[dict[str, object]]:
        """A row for each rank: mean and max of each metric, for the `ranks_summary` event."""
        return [
            {
                "rank": rank,
                "mean": {name: round(each.mean, 3) for name, each in sums.items()},
                "max": {name: round(each.maximum, 3) for name, each in sums.items()},
            }
            for rank, sums in self._known()
        ]

    def lines(self) -> list[str]:
        """The same for people, a line for each of the first ranks."""
        lines = (_line(rank, sums) for rank, sums in self._known())
        return [line for line in lines if line][:_MAX_LINES]

    def _known(self) -> list[tuple[int, dict[str, MetricSummary]]]:
        left_out = () if is_peak_known(self._sums.values()) else (PEAK_SHARE,)
        return [
            (rank, {name: each for name, each in sums.items() if name not in left_out})
            for rank, sums in sorted(self._sums.items())
        ]

    def _once(self, rank: int, what: str, text: str) -> list[str]:
        if (rank, what) in self._said:
            return []
        self._said.add((rank, what))
        return [text]


def _missing_text(rank: int, missing: list[str]) -> str:
    return f"The driver of rank {rank}'s GPU does not report: {', '.join(missing)}."


def _line(rank: int, sums: Mapping[str, MetricSummary]) -> str:
    """Empty if the run was too short for a reading."""
    # the cores of a CPU are shared with other processes, so neither figure says how well they are used
    left_out = set() if "allocated_mib" in sums else {"model_tflops", PEAK_SHARE}
    shown = []
    for name, (title, unit, factor) in {**GPU_METRICS, **_OTHERS}.items():
        if (each := sums.get(name)) is not None and name not in left_out:
            mean, maximum = round(each.mean * factor, 3), round(each.maximum * factor, 3)
            if maximum > 0:
                shown.append(f"{title} {mean:.3g} (max {maximum:.3g}) {unit}".replace(" %", "%"))
    return f"Rank {rank} on average: {', '.join(shown)}." if shown else ""
