"""The NVIDIA GPUs of this machine, read through NVML."""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final, TypeVar

T = TypeVar("T")


_NO_PERMISSION: Final = 4  # NVML_ERROR_NO_PERMISSION: a GPU that a container or a batch system hides


@dataclass(frozen=True)
class Gpu:
    """One GPU; `index` is its number in PCI order, as in nvidia-smi.

    `memory_mib` is 0 and `uuid` empty if the driver does not report them.
    """

    index: int
    name: str
    memory_mib: int
    uuid: str
    fault: str = ""  # why the driver cannot read it, such as "GPU is lost"; CUDA cannot use it either
    cuda_index: int | None = None  # its number in CUDA, if hidden or unreadable GPUs make it another than `index`


@dataclass(frozen=True)
class GpuLoad:
    """The current load of one GPU; values that its driver does not report are None."""

    index: int
    utilization_percent: int | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_w: float | None
    memory_total_mib: int | None = None


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """The usable GPUs that CUDA_VISIBLE_DEVICES allows, in its order; [] without a driver."""
    usable = [gpu for gpu in installed_gpus() if not gpu.fault]
    wanted = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    return usable if wanted is None else _select(usable, wanted)


def installed_gpus() -> list[Gpu]:
    """The GPUs that this process may see, whatever CUDA_VISIBLE_DEVICES says, with those that cannot be read."""
    with open_nvml() as nvml:
        if nvml is None:
            return []
        described = [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    return list(_numbered(gpu for gpu in described if gpu is not None))


def gpu_load(gpus: list[Gpu]) -> list[GpuLoad]:
    """The current load of each given GPU, in the same order; [] without a driver."""
    with open_nvml() as nvml:
        return [] if nvml is None else [_measure(nvml, gpu.index) for gpu in gpus]


@contextmanager
def open_nvml() -> Iterator[ModuleType | None]:
    """The NVML library, initialised for the duration of the block; None without a working NVIDIA driver."""
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


def _describe(nvml: ModuleType, index: int) -> Gpu | None:
    """The GPU; None if it is hidden from this process."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml_text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError as error:
        # nvmlDeviceGetCount includes GPUs that only other containers or jobs may use.
        is_hidden = getattr(error, "value", None) == _NO_PERMISSION
        return None if is_hidden else Gpu(index, "unreadable GPU", 0, "", fault=str(error) or "unknown error")
    memory = query_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)  # not reported if the GPU shares the host's memory
    uuid = query_nvml(nvml, nvml.nvmlDeviceGetUUID, handle)
    return Gpu(index, name, 0 if memory is None else int(memory.total) >> 20, "" if uuid is None else nvml_text(uuid))


def _numbered(gpus: Iterable[Gpu]) -> Iterator[Gpu]:
    """The same GPUs with their CUDA numbers: CUDA counts only those that it can use."""
    count = 0
    for gpu in gpus:
        yield gpu if gpu.fault or count == gpu.index else replace(gpu, cuda_index=count)
        count += not gpu.fault


def _measure(nvml: ModuleType, index: int) -> GpuLoad:
    handle = query_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return GpuLoad(index, None, None, None, None)
    utilization = query_nvml(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = query_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    temperature = query_nvml(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    power_mw = query_nvml(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuLoad(
        index,
        utilization_percent=None if utilization is None else int(utilization.gpu),
        memory_used_mib=None if memory is None else int(memory.used) >> 20,
        temperature_c=None if temperature is None else int(temperature),
        power_w=None if power_mw is None else power_mw / 1000,
        memory_total_mib=None if memory is None else int(memory.total) >> 20,
    )


def query_nvml(nvml: ModuleType, function: Callable[..., T], *arguments: object) -> T | None:
    """The result of an NVML function; None if this GPU or driver does not support it, as on laptops and in VMs."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def nvml_text(value: str | bytes) -> str:
    """A string from NVML, which older bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _select(gpus: list[Gpu], wanted: str) -> list[Gpu]:
    """CUDA's rule: entries in their order; one that does not exist hides itself and all after it."""
    chosen: list[Gpu] = []
    for entry in wanted.split(","):
        gpu = _find(gpus, entry.strip())
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return chosen


def _find(gpus: list[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        # A slice of a GPU, counted as a device; NVML does not say of which GPU without opening it.
        return replace(gpus[0], name=f"{gpus[0].name} (MIG)", uuid=entry) if gpus else None
    if not entry.startswith("GPU-"):
        return None
    matching = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None
