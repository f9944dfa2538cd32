"""What the Processes page calls the figures of a process, and what it says of those that need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.widgets import theme

# Parts of a step in order: title and colour.
PARTS: Final = {
    "data_s": ("waiting for data", theme.SERIES[1]),
    "computing": ("computing", theme.SERIES[0]),
    "forward_s": ("forward", theme.SERIES[0]),
    "backward_s": ("backward", theme.SERIES[2]),
    "sync_s": ("waiting for other processes", theme.SERIES[3]),
    "optimizer_s": ("optimizer step", theme.SERIES[4]),
    "logging_s": ("logging", theme.SERIES[5]),
    "waiting": ("gradient sync and optimizer step", theme.SERIES[3]),
}


@dataclass(frozen=True)
class Figure:
    """A metric of a process. `factor` leads from what is measured to `unit`; `help` is for its heading."""

    title: str
    form: str
    unit: str
    factor: float = 1.0
    help: str = ""

    def text(self, value: float) -> str:
        """A value without its unit."""
        return self.form.format(value * self.factor)


FIGURES: Final = {
    "utilization_percent": Figure("GPU load", "{:.0f}", " %"),
    "memory_used_mib": Figure("GPU memory", "{:.1f}", " GiB", 1 / 1024),
    "temperature_c": Figure("Temperature", "{:.0f}", " °C"),
    "power_w": Figure("Power", "{:.0f}", " W"),
    "peak_percent": Figure(
        "Of peak FLOPs",
        "{:.0f}",
        " %",
        help="How much of its speed the device uses: the floating-point operations (FLOPs) per second that training "
        "needs, of the most that the device did in a test before the first step.",
    ),
    "sm_clock_mhz": Figure("GPU clock", "{:.0f}", " MHz"),
    "reserved_mib": Figure(
        "Reserved by torch",
        "{:.1f}",
        " GiB",
        1 / 1024,
        help="GPU memory that torch has taken, in use or kept ready.",
    ),
    "cpu_percent": Figure("CPU load", "{:.0f}", " %"),
    "ram_used_mib": Figure("RAM", "{:.1f}", " GiB", 1 / 1024),
    "process_cpu_percent": Figure("CPU of process", "{:.0f}", " %", help="100 % is one core."),
    "process_ram_mib": Figure("RAM of process", "{:.1f}", " GiB", 1 / 1024),
    "disk_read_mb_s": Figure("Disk read", "{:.1f}", " MB/s"),
    "network_sent_mb_s": Figure("Network sent", "{:.1f}", " MB/s"),
    "memory_efficiency_percent": Figure(
        "Memory efficiency",
        "{:.0f}",
        " %",
        help="The GPU memory in use at its peak, of what torch has reserved; the rest is cached or fragmented.",
    ),
}
