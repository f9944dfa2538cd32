"""How much of a device's measured peak the model uses: its operations are counted once, in its first forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from modules.torch_compat import ATTENTION_OPERATORS, CPU_ATTENTION, TorchDispatchMode
from modules.training.device.precision import Precision

_SIZE: Final = {"cuda": 4096}
_PRODUCTS: Final = {"cuda": 20}  # a GPU that was idle takes some milliseconds to raise its clock
_WITH_SUMMAND: Final = (torch.ops.aten.addmm, torch.ops.aten.baddbmm)


class ModelFlops:
    """Floating-point operations (FLOPs) of a step on this rank, and the most that its device can do in a second.

    The backward of an operation takes its forward once for each factor whose gradient is needed, an activation or a
    weight: a trained layer takes three forwards, as in "PaLM" (Chowdhery et al. 2022), appendix B, a frozen one two
    behind trained layers and one before them. What gradient checkpointing computes again does not count, nor does the
    backward of what runs without autograd, such as the inside of a torch.autograd.Function.
    """

    def __init__(self, *, can_count: bool) -> None:
        """`can_count`: neither compiled, nor with communication in the forward."""
        self._counter = _Counter() if can_count else None
        self.per_sample = 0.0
        self.peak = 0.0  # FLOPs per second, see measure_peak

    @classmethod
    def of(cls, precision: Precision, *, can_count: bool) -> ModelFlops:
        """Those of a model in its precision; the peak is measured, unless they cannot be counted."""
        flops = cls(can_count=can_count)
        if can_count:
            flops.peak = measure_peak(precision.device, precision.computing)
        return flops

    def counting(self, samples: int) -> AbstractContextManager[object]:
        """Around the forward of `samples`: the first one is counted."""
        counter, self._counter = self._counter, None
        if counter is None:
            return nullcontext()
        return counter.of(lambda flops: self._set(flops / samples))

    def of_step(self, samples: int) -> dict[str, float]:
        """The metrics of a step: its FLOPs, and the peak; {} if they cannot be counted."""
        if not self.per_sample:
            return {}
        return {"model_flops": self.per_sample * samples, "peak_flops": self.peak}

    def _set(self, per_sample: float) -> None:
        self.per_sample = per_sample


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs per second of the fastest of a few matrix products in `dtype`, some 10 ms; 0 if memory is short.

    On the CPU those of one thread times the threads: while other processes are busy, a product of several threads waits
    for the last of them (two threads on two busy cores: now 0.9, now 350 GFLOP/s; one thread: 130 to 200).
    """
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        return threads * _measure(device, dtype)
    except torch.OutOfMemoryError:
        return 0.0
    finally:
        if device.type == "cpu":
            torch.set_num_threads(threads)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what follows finds the memory as it was


def _measure(device: torch.device, dtype: torch.dtype) -> float:
    size = _SIZE.get(device.type, 256)
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    fastest_s = float("inf")
    for _ in range(_PRODUCTS.get(device.type, 4)):
        _synchronize(device)
        started = time.perf_counter()
        matrix @ matrix
        _synchronize(device)
        fastest_s = min(fastest_s, time.perf_counter() - started)
    return 2.0 * size**3 / fastest_s


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Counter(TorchDispatchMode):
    """Adds up torch's own formulas, with the backward that will follow; runs every operation as it is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flops = 0.0
        self._report: Callable[[float], None] = lambda flops: None

    def of(self, report: Callable[[float], None]) -> _Counter:
        """As a context: `report` gets the sum at the end."""
        self._report = report
        return self

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        operation = func._overloadpacket
        formula = flop_registry.get(operation)
        if formula is not None:
            self._flops += formula(*args, **(kwargs or {}), out_val=result) * (1 + _gradients(operation, args))
        elif operation is CPU_ATTENTION:
            forward = sdpa_flop_count(*(each.shape for each in args[:3]))  # type: ignore[attr-defined]
            self._flops += forward * (1 + _gradients(operation, args))
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if exception[0] is None:
            self._report(self._flops)


def _gradients(operation: Any, args: Sequence[object]) -> float:
    """The backward of an operation, in forwards: one for each of the two factors whose gradient is needed."""
    needed = [isinstance(each, torch.Tensor) and each.requires_grad and torch.is_grad_enabled() for each in args[:3]]
    if operation not in ATTENTION_OPERATORS:
        return sum(needed[1:] if operation in _WITH_SUMMAND else needed[:2])
    query, key, value = needed  # two products forward; the gradients of query and key share one more
    return (query + key + value + (query or key)) / 2
