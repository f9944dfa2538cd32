"""How much memory this process takes at its peak, and how much it may take: of its GPU, or of the machine."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import psutil
import torch

from modules.config import ConfigError
from modules.files import FileFault, read_text
from modules.machine.host import usable_memory_mib
from modules.run.batch_size.records import GIB, SearchRequest
from modules.training.step.memory_guard import release_memory

_RESET: Final = Path("/proc/self/clear_refs")
_STATUS: Final = Path("/proc/self/status")


class MemoryMeter(Protocol):
    """Measures one attempt after the other. `limit` and what `peak` returns are bytes."""

    limit: int

    def restart(self) -> None:
        """Free what the attempt before has left, and forget its peak."""

    def peak(self) -> int:
        """The most memory that was taken since `restart`."""

    def allows(self, expected: int) -> bool:
        """Whether an attempt that is expected to take this much may be made at all."""


class GpuMeter:
    """Of a GPU's memory `target` (a share) may be taken, other programs' included; torch refuses more than that."""

    def __init__(self, device: torch.device, request: SearchRequest) -> None:
        self._device = device
        release_memory()
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)
        self._others = total - free - own  # with this process's context and communication buffers
        self.limit = int(total * request.memory_target)
        share = (self.limit - self._others) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)), device)

    def restart(self) -> None:
        gc.collect()
        release_memory()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """With what other programs took at the start."""
        return torch.cuda.max_memory_reserved(self._device) + self._others

    def allows(self, expected: int) -> bool:
        """Always: torch raises its error at the limit."""
        return True


class ProcessMeter:
    """The memory of this process, as Linux counts it: the high-water mark of its resident pages, reset before each
    attempt. It holds all that torch, its libraries and its threads take, and no other process of the machine."""

    def __init__(self, request: SearchRequest, processes: int) -> None:
        """`processes` share what is free now."""
        try:
            self.restart()
            self.limit = self.peak()
        except (OSError, FileFault, StopIteration) as error:
            raise ConfigError(
                "The batch size can be searched on GPUs, and on CPUs with Linux, which tells a process how much memory "
                f"it took at most; here {_RESET} cannot be used ({error}).",
                "Try a few values of batch_size, and watch the memory in the Monitor.",
            ) from error
        if request.memory_limit_gb is not None:
            self.limit = int(request.memory_limit_gb * GIB)
            return
        memory = usable_memory_mib()
        free = memory.available - (1 - request.memory_target) * memory.total
        self.limit += max(0, int(free / processes)) << 20

    def restart(self) -> None:
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # glibc keeps freed memory otherwise, which the next attempt finds
        _RESET.write_text("5")  # Linux, Documentation/filesystems/proc.rst: resets VmHWM

    def peak(self) -> int:
        return peak_of_process()

    def allows(self, expected: int) -> bool:
        """Only up to the limit, and to what the machine has left: it would end a process, not refuse it memory."""
        taken = psutil.Process().memory_info().rss
        return expected <= self.limit and expected - taken <= usable_memory_mib().available << 20


def peak_of_process() -> int:
    """The most bytes of main memory that this process has had, by Linux's VmHWM; elsewhere raises OSError."""
    line = next(line for line in read_text(_STATUS).splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def memory_meter(device: torch.device, request: SearchRequest, processes: int) -> MemoryMeter:
    """The meter of this process, which computes on `device` and shares the machine with `processes` in all."""
    return GpuMeter(device, request) if device.type == "cuda" else ProcessMeter(request, processes)
