"""The NVIDIA GPUs of this machine, asked of the driver through NVML."""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType


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


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows, in its order; [] without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        present = [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    wanted = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    return present if wanted is None else _select(present, wanted)


def gpu_load(gpus: list[Gpu]) -> list[GpuLoad]:
    """The present load of each given GPU, in the same order; [] without a driver."""
    with _nvml() as nvml:
        return [] if nvml is None else [_measure(nvml, gpu.index) for gpu in gpus]


@contextmanager
def _nvml() -> Iterator[ModuleType | None]:
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
    return Gpu(index, _text(nvml.nvmlDeviceGetName(handle)), memory, _text(nvml.nvmlDeviceGetUUID(handle)))


def _measure(nvml: ModuleType, index: int) -> GpuLoad:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Callable[[], float]) -> float | None:
        # Laptop and virtual GPUs answer "not supported" to single questions.
        try:
            return question()
        except nvml.NVMLError:
            return None

    utilization = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    used = ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20)
    temperature = ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return GpuLoad(index, _whole(utilization), _whole(used), _whole(temperature), power)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _text(value: str | bytes) -> str:
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
