"""Free memory, temperature and throttling of NVIDIA GPUs, and the driver version, read through NVML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modules.machine.devices import Gpu, nvml_text, open_nvml, query_nvml
from modules.machine.gpu_load import UNWANTED_REASONS


@dataclass(frozen=True)
class GpuHealth:
    """Free memory, temperature and slowdown reasons of one GPU; values that the driver does not report are None."""

    index: int
    memory_mib: int
    free_mib: int | None
    temperature_c: int | None
    slowdown_reasons: tuple[str, ...] = ()


def gpu_health(gpus: Sequence[Gpu]) -> list[GpuHealth]:
    """The health of each given GPU, in the same order; [] without a driver."""
    found = []
    with open_nvml() as nvml:
        if nvml is None:
            return []
        for gpu in gpus:
            handle = query_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, gpu.index)
            if handle is None:
                found.append(GpuHealth(gpu.index, gpu.memory_mib, None, None))
                continue
            memory = query_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
            temperature = query_nvml(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            reasons = query_nvml(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
            free = None if memory is None else int(memory.free) >> 20
            slowdown_reasons = tuple(text for bit, text in UNWANTED_REASONS.items() if int(reasons) & bit)
            found.append(GpuHealth(gpu.index, gpu.memory_mib, free, temperature, slowdown_reasons))
    return found


def driver_version() -> str | None:
    """The version of the NVIDIA driver; None without one."""
    with open_nvml() as nvml:
        version = None if nvml is None else query_nvml(nvml, nvml.nvmlSystemGetDriverVersion)
        return None if version is None else nvml_text(version)
