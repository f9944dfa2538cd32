"""The NVIDIA GPUs of this machine, asked of the driver through NVML."""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Gpu:
    """One GPU; `index` is its number in PCI order, as nvidia-smi shows it."""

    index: int
    name: str
    memory_mib: int
    uuid: str


@dataclass(frozen=True)
class GpuLoad:
    """What one GPU is doing now; a figure its driver does not offer is None."""

    index: int
    utilization_percent: int | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_w: float | None
    memory_total_mib: int | None = None


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows, in its order; [] without a driver."""
    with open_nvml() as nvml:
        if nvml is None:
            return []
        present = [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    wanted = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    return present if wanted is None else _select(present, wanted)


def gpu_load(gpus: list[Gpu]) -> list[GpuLoad]:
    """The present load of each given GPU, in the same order; [] without a driver."""
    with open_nvml() as nvml:
        return [] if nvml is None else [_measure(nvml, gpu.index) for gpu in gpus]


@contextmanager
def open_nvml() -> Iterator[ModuleType | None]:
    """NVML for the time of one question; None where there is no NVIDIA driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    return Gpu(index, driver_text(nvml.nvmlDeviceGetName(handle)), memory, driver_text(nvml.nvmlDeviceGetUUID(handle)))


def _measure(nvml: ModuleType, index: int) -> GpuLoad:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    utilization = ask_driver(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = ask_driver(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    temperature = ask_driver(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    power_mw = ask_driver(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuLoad(
        index,
        utilization_percent=None if utilization is None else int(utilization.gpu),
        memory_used_mib=None if memory is None else int(memory.used) >> 20,
        temperature_c=None if temperature is None else int(temperature),
        power_w=None if power_mw is None else power_mw / 1000,
        memory_total_mib=None if memory is None else int(memory.total) >> 20,
    )


def ask_driver(nvml: ModuleType, question: Callable[..., T], *arguments: object) -> T | None:
    """The answer of NVML; None where this GPU or driver has none, as laptop and virtual ones for single questions."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def driver_text(value: str | bytes) -> str:
    """Text of NVML, which older bindings give as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _select(present: list[Gpu], wanted: str) -> list[Gpu]:
    """CUDA's rule: entries in their order, and one that does not exist hides itself and all after it."""
    chosen: list[Gpu] = []
    for entry in wanted.split(","):
        gpu = _find(present, entry.strip())
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return chosen


def _find(present: list[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal():
        return next((gpu for gpu in present if gpu.index == int(entry)), None)
    if entry.startswith("MIG-"):
        # A slice of a GPU, counted as a device; NVML does not say of which without opening it.
        return replace(present[0], name=f"{present[0].name} (MIG)", uuid=entry) if present else None
    if not entry.startswith("GPU-"):
        return None
    matching = [gpu for gpu in present if gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None
