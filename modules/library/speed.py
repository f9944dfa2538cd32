"""How fast and how full: samples per second of all ranks, scaling, device memory, and a short benchmark of a model."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modules.library.unwrap import unwrapped

BatchT = TypeVar("BatchT")


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one device since the start or the last `torch.cuda.reset_peak_memory_stats`, in MiB.

    `peak_allocated_mib` was in tensors, `peak_reserved_mib` taken from the device by PyTorch's caching allocator.
    """

    peak_allocated_mib: float
    peak_reserved_mib: float
    total_mib: float

    @property
    def efficiency(self) -> float:
        """Allocated / reserved, from 0 to 1: what is missing to 1 is the allocator's cache and its fragmentation.

        See "Memory management" in PyTorch's CUDA semantics, docs.pytorch.org/docs/stable/notes/cuda.html.
        """
        return self.peak_allocated_mib / self.peak_reserved_mib if self.peak_reserved_mib else 0.0

    @property
    def utilization(self) -> float:
        """Reserved / memory of the device, from 0 to 1: near 1 a larger batch would not fit."""
        return self.peak_reserved_mib / self.total_mib if self.total_mib else 0.0


@dataclass(frozen=True)
class Benchmark:
    """Medians over the measured steps: milliseconds of forward (with the loss) and of backward for one batch."""

    forward_ms: float
    backward_ms: float
    steps: int
    memory: MemoryUse | None  # None on the CPU

    @property
    def batches_per_s(self) -> float:
        """Batches per second of forward and backward alone, without data loading and optimizer."""
        return 1000 / (self.forward_ms + self.backward_ms)


def throughput(samples: int, seconds: float) -> float:
    """Samples per second of all ranks together: the sum of their samples / the longest of their times.

    The slowest rank decides, because the others wait for it at the end of each step. A collective: all ranks must call
    it. Without a process group, samples / seconds.
    """
    if not seconds > 0:
        raise ValueError(f"throughput: seconds is {seconds}; it must be above 0")
    if not dist.is_initialized():
        return samples / seconds
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    total, longest = (torch.tensor(value, dtype=torch.float64, device=device) for value in (samples, seconds))
    dist.all_reduce(total)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(total / longest)


def scaling_efficiency(samples_per_s: float, samples_per_s_of_one: float, world_size: int) -> float:
    """samples_per_s / (world_size * samples_per_s_of_one): 1 if N devices are N times as fast as one.

    That is the efficiency of weak scaling if the batch of each device stays the same, and of strong scaling if the
    batch of all devices together does.
    """
    if world_size < 1 or not samples_per_s_of_one > 0:
        raise ValueError(
            f"scaling_efficiency: world_size is {world_size} and samples_per_s_of_one {samples_per_s_of_one}; both "
            "must be above 0"
        )
    return samples_per_s / (world_size * samples_per_s_of_one)


def memory_efficiency(device: torch.device | str | None = None) -> MemoryUse | None:
    """The memory that this process uses on a GPU (default: the current one); None on the CPU, which keeps no count."""
    if not torch.cuda.is_available() or (device is not None and torch.device(device).type != "cuda"):
        return None
    _, total = torch.cuda.mem_get_info(device)
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return MemoryUse(allocated / 2**20, reserved / 2**20, total / 2**20)


def benchmark(
    model: nn.Module,
    sample_batch: BatchT,
    loss: Callable[[nn.Module, BatchT], Tensor],
    *,
    steps: int = 10,
    warm_up: int = 3,
) -> Benchmark:
    """Time forward and backward of `loss(model, sample_batch)` on the device of the model, in a few steps.

    The batch must be on that device. Losses per sample are averaged. The first `warm_up` steps do not count: they
    choose kernels and fill caches. A copy of the model is measured, without DistributedDataParallel around it, so the
    model keeps its gradients and buffers, such as BatchNorm's averages, and the caller its random numbers.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"benchmark: model is {type(model).__name__}; give a torch.nn.Module")
    if steps < 1 or warm_up < 0:
        raise ValueError(f"benchmark: steps is {steps} and warm_up {warm_up}; at least 1 and 0 are needed")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    measured = copy.deepcopy(unwrapped(model))
    times = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for _ in range(warm_up + steps):
            started = _now(device)
            mean = _mean(loss(measured, sample_batch))
            after_forward = _now(device)
            mean.backward()
            times.append((after_forward - started, _now(device) - after_forward))
            measured.zero_grad(set_to_none=True)
    forward, backward = (statistics.median(column) * 1000 for column in zip(*times[warm_up:], strict=True))
    return Benchmark(forward, backward, steps, memory_efficiency(device))


def _mean(losses: object) -> Tensor:
    if not isinstance(losses, Tensor):
        raise TypeError(f"benchmark: loss returned {type(losses).__name__}; it must be a tensor, without .item()")
    if not losses.requires_grad:
        raise ValueError(
            "benchmark: loss returned a tensor without a gradient; compute it with the output of the model, without "
            "torch.no_grad() or .detach()"
        )
    return losses.mean()


def _now(device: torch.device) -> float:
    """Seconds, after the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
