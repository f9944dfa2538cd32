"""The NVIDIA GPUs of this machine, read through NVML."""

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final, TypeVar

T = TypeVar("T")


_VGPU: Final = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU: a share of a GPU in a virtual machine
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
        count = query_nvml(nvml, nvml.nvmlDeviceGetCount)  # none after a fault of the driver
        described = [_describe(nvml, index) for index in range(count or 0)]
    return list(_numbered(gpu for gpu in described if gpu is not None))


def mig_device(uuid: str) -> Gpu | None:
    """The slice of a GPU (MIG) with this UUID and the number of its GPU; None if there is no such slice."""
    with open_nvml() as nvml:
        if nvml is None:
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            index = nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
        except nvml.NVMLError:
            return None
        memory = query_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        name = query_nvml(nvml, nvml.nvmlDeviceGetName, handle) or "MIG device"
        return Gpu(int(index), nvml_text(name), 0 if memory is None else int(memory.total) >> 20, uuid)


def can_map_memory(gpus: Sequence[Gpu]) -> bool:
    """Whether CUDA can extend a piece of GPU memory in place, by its virtual memory management.

    Not on Windows; on WSL2 drivers offer it and fail (github.com/pytorch/pytorch/issues/192330), and so do profiles of
    virtual GPUs (github.com/dmlc/xgboost/issues/12217).
    """
    if sys.platform != "linux" or is_wsl():
        return False
    with open_nvml() as nvml:
        return nvml is None or not any(_is_virtual(nvml, gpu) for gpu in gpus)


def is_wsl() -> bool:
    """Whether this Linux runs within Windows."""
    return "microsoft" in platform.release().lower()


def _is_virtual(nvml: ModuleType, gpu: Gpu) -> bool:
    handle = query_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, gpu.index)
    return handle is not None and query_nvml(nvml, nvml.nvmlDeviceGetVirtualizationMode, handle) == _VGPU


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
        # one that NVML does not know is counted as well, of unknown memory: former drivers named them in other ways
        unknown = replace(gpus[0], name=f"{gpus[0].name} (MIG)", memory_mib=0, uuid=entry) if gpus else None
        return mig_device(entry) or unknown
    if not entry.startswith("GPU-"):
        return None
    matching = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None
