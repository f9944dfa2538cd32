"""What slows NVIDIA GPUs down at this moment, and the driver's version, asked through NVML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from modules.machine.devices import Gpu, ask_driver, driver_text, open_nvml

# Bits of nvmlClocksEventReasons that cost speed without anybody's wish.
_BRAKES: Final = {
    0x08: "hardware slowdown (heat or power supply)",
    0x20: "heat (driver slows it down)",
    0x40: "heat (hardware slows it down)",
    0x80: "the power supply's brake",
}


@dataclass(frozen=True)
class GpuHealth:
    """Memory that is free now, and the reasons for which the GPU runs slower than it could."""

    index: int
    memory_mib: int
    free_mib: int | None
    temperature_c: int | None
    brakes: tuple[str, ...] = ()


def gpu_health(gpus: Sequence[Gpu]) -> list[GpuHealth]:
    """The health of each given GPU, in the same order; [] without a driver."""
    found = []
    with open_nvml() as nvml:
        if nvml is None:
            return []
        for gpu in gpus:
            handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
            memory = ask_driver(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
            temperature = ask_driver(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            reasons = ask_driver(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
            free = None if memory is None else int(memory.free) >> 20
            brakes = tuple(text for bit, text in _BRAKES.items() if int(reasons) & bit)
            found.append(GpuHealth(gpu.index, gpu.memory_mib, free, temperature, brakes))
    return found


def driver_version() -> str | None:
    """The NVIDIA driver's version; None without one."""
    with open_nvml() as nvml:
        version = None if nvml is None else ask_driver(nvml, nvml.nvmlSystemGetDriverVersion)
        return None if version is None else driver_text(version)
