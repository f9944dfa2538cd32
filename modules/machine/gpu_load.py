"""What NVIDIA GPUs do at this moment: load, memory, temperature, power, clocks and what holds the clocks back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from modules.machine.devices import Gpu, is_wsl, open_nvml, query_nvml

# Bits of nvmlClocksEventReasons (nvml.h). Idle, application clocks, sync boost and display are left out: no slowdown.
UNWANTED_REASONS: Final = {
    0x08: "hardware slowdown (temperature or power supply)",
    0x20: "temperature (driver limit)",
    0x40: "temperature (hardware limit)",
    0x80: "power brake (external)",
}
POWER_LIMIT: Final = "power limit"  # usual under full load; only lower clocks make it a problem
_REASONS: Final = {0x04: POWER_LIMIT, **UNWANTED_REASONS}


@dataclass(frozen=True)
class GpuLoad:
    """The current load of one GPU; values that its driver does not report are None."""

    index: int
    utilization_percent: int | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_w: float | None
    memory_total_mib: int | None = None
    power_limit_w: float | None = None  # in force
    power_default_w: float | None = None  # the limit that the card comes with
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    slowdown: str | None = None  # what holds its clocks back; empty if nothing does
    fault: str = ""  # why the driver does not answer for it at all


def gpu_load(gpus: Sequence[Gpu]) -> list[GpuLoad]:
    """The current load of each given GPU, in the same order; [] without a driver."""
    with open_nvml() as nvml:
        return [] if nvml is None else [_measure(nvml, gpu) for gpu in gpus]


def spills_to_host() -> bool:
    """Whether a driver moves memory to the host when that of a GPU is full: on Windows, also below WSL.

    It is the driver's "CUDA - Sysmem Fallback Policy", which is on by default; on Linux the allocation fails instead.
    """
    return sys.platform == "win32" or is_wsl()


def slowdown_reasons(bits: int) -> tuple[str, ...]:
    """The texts of nvmlClocksEventReasons, the power limit included."""
    return tuple(text for bit, text in _REASONS.items() if bits & bit)


def _measure(nvml: ModuleType, gpu: Gpu) -> GpuLoad:
    is_slice = gpu.uuid.startswith("MIG-")
    try:
        # By number for a whole GPU: a lost one has no UUID. A slice only has its memory of its own.
        part = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) if is_slice else nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part) if is_slice else part
    except nvml.NVMLError as error:
        return GpuLoad(gpu.index, None, None, None, None, fault=str(error) or "unknown error")
    utilization = query_nvml(nvml, nvml.nvmlDeviceGetUtilizationRates, whole)
    memory = query_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, part)
    temperature = query_nvml(nvml, nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU)
    power_mw = query_nvml(nvml, nvml.nvmlDeviceGetPowerUsage, whole)
    limit_mw = query_nvml(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, whole)
    default_mw = query_nvml(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, whole)
    bits = query_nvml(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, whole)
    return GpuLoad(
        gpu.index,
        utilization_percent=None if utilization is None else int(utilization.gpu),
        memory_used_mib=None if memory is None else int(memory.used) >> 20,
        temperature_c=None if temperature is None else int(temperature),
        power_w=None if power_mw is None else power_mw / 1000,
        memory_total_mib=None if memory is None else int(memory.total) >> 20,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        power_default_w=None if default_mw is None else default_mw / 1000,
        sm_clock_mhz=query_nvml(nvml, nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=query_nvml(nvml, nvml.nvmlDeviceGetMaxClockInfo, whole, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=query_nvml(nvml, nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_MEM),
        slowdown=None if bits is None else ", ".join(slowdown_reasons(int(bits))),
    )
