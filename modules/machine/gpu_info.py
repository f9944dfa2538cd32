"""GPUs and this machine as records and as a table, and their load over a while. Works without a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

import psutil

from modules.machine.devices import visible_gpus
from modules.machine.gpu_load import gpu_load
from modules.machine.host import cpu_count, hostname, memory_mib
from modules.machine.torch_build import gpu_obstacle


@dataclass(frozen=True)
class GpuInfo:
    """One GPU that this process may use; what its driver does not report is None.

    `index` is its number in nvidia-smi. Memory in MiB, of all processes; utilization in percent of the time of the
    last measuring period of the driver (about a second) in which a kernel ran.
    """

    index: int
    name: str
    memory_total_mib: int | None
    memory_free_mib: int | None
    memory_used_mib: int | None
    utilization_percent: int | None
    temperature_c: int | None
    power_w: float | None
    uuid: str = ""


@dataclass(frozen=True)
class MetricSummary:
    """Mean and largest value of one metric, and of how many records."""

    mean: float
    max: float
    count: int


def gpu_info() -> list[GpuInfo]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows, with their current load; [] without a GPU or its driver."""
    gpus = visible_gpus()
    return [
        GpuInfo(
            index=gpu.index,
            name=gpu.name,
            memory_total_mib=total,
            memory_free_mib=None if total is None or load.memory_used_mib is None else total - load.memory_used_mib,
            memory_used_mib=load.memory_used_mib,
            utilization_percent=load.utilization_percent,
            temperature_c=load.temperature_c,
            power_w=load.power_w,
            uuid=gpu.uuid,
        )
        for gpu, load in zip(gpus, gpu_load(gpus), strict=False)
        for total in (load.memory_total_mib or gpu.memory_mib or None,)
    ]


def device_summary() -> str:
    """A text for people: the machine in one line, then a table of its GPUs, or why there is none to train on."""
    memory = memory_mib()
    host = f"{hostname()}: {cpu_count()} CPU cores, {memory.available:,} of {memory.total:,} MiB of memory available"
    gpus, obstacle = gpu_info(), gpu_obstacle()
    if not gpus:
        return f"{host}\n{obstacle or 'No NVIDIA GPU was found: training runs on the CPU.'}"
    columns = ("GPU", "name", "memory MiB", "free MiB", "load %", "temperature C", "power W")
    rows = [
        (g.index, g.name, g.memory_total_mib, g.memory_free_mib, g.utilization_percent, g.temperature_c, g.power_w)
        for g in gpus
    ]
    table = [columns, *(tuple("-" if value is None else f"{value}" for value in row) for row in rows)]
    widths = [max(len(row[number]) for row in table) for number in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([host, *lines, *([] if obstacle is None else [str(obstacle)])])


class GpuMonitor:
    """Records the load of the GPUs and of the machine, in a thread every `interval_s` seconds, or on `record()`.

    As a context manager it records for the duration of the block:

        with GpuMonitor() as monitor:
            train()
        print(monitor.summary()["gpu 0 utilization_percent"].mean)

    Without a GPU there are the metrics of the machine alone. It never waits for a GPU: the driver is asked.
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s is {interval_s}; it must be above 0, such as 1.0")
        self._interval_s = interval_s
        self._gpus = visible_gpus()
        self._records: dict[str, tuple[float, float, int]] = {}  # metric -> sum, largest, count
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        psutil.cpu_percent(None)  # the first call has no interval to measure
        self._cpu_from = time.monotonic()

    def __enter__(self) -> Self:
        self._closing.clear()
        self._thread = threading.Thread(target=self._poll, name="gpu-monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.record()  # so that a block shorter than the interval has one record, too

    def record(self) -> dict[str, float]:
        """Measure once: the values by metric, such as "gpu 0 memory_used_mib", "cpu_percent" and "ram_used_mib"."""
        values = self._measure()
        with self._lock:
            for name, value in values.items():
                total, largest, count = self._records.get(name, (0.0, value, 0))
                self._records[name] = total + value, max(largest, value), count + 1
        return values

    def summary(self) -> Mapping[str, MetricSummary]:
        """Mean, largest value and number of the records of each metric so far; {} before the first one."""
        with self._lock:
            return {
                name: MetricSummary(total / count, largest, count)
                for name, (total, largest, count) in self._records.items()
            }

    def _measure(self) -> dict[str, float]:
        memory = memory_mib()
        values = {"ram_used_mib": float(memory.total - memory.available)}
        if time.monotonic() - self._cpu_from > 0.05:  # psutil measures between two calls
            values["cpu_percent"] = psutil.cpu_percent(None)
            self._cpu_from = time.monotonic()
        for gpu, load in zip(self._gpus, gpu_load(self._gpus), strict=False):
            measured = {name: value for name, value in asdict(load).items() if isinstance(value, (int, float))}
            for name in ("index", "memory_total_mib", "power_limit_w", "power_default_w", "sm_clock_max_mhz"):
                measured.pop(name, None)
            values.update({f"gpu {gpu.index} {name}": float(value) for name, value in measured.items()})
        return values

    def _poll(self) -> None:
        while not self._closing.wait(self._interval_s):
            self.record()
