"""How much of a device's measured peak the model uses: its operations are counted once, in its first forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from modules.training.precision import Precision

_SIZE: Final = {"cuda": 4096}
_PRODUCTS: Final = 4


class ModelFlops:
    """Floating-point operations (FLOPs) of a step on this rank, and the most that its device can do in a second.

    The backward is taken as once the forward for the gradients of the activations and once for those of the trained
    share of the weights, so that all of a model takes three forwards, as in "PaLM" (Chowdhery et al. 2022), appendix B.
    What gradient checkpointing computes again does not count.
    """

    def __init__(self, *, trained_share: float, can_count: bool) -> None:
        """`can_count`: neither compiled, nor with communication in the forward."""
        self._factor = 2.0 + trained_share
        self._counter = _Counter() if can_count else None
        self.per_sample = 0.0
        self.peak = 0.0  # FLOPs per second, see measure_peak

    @classmethod
    def of(cls, model: nn.Module, precision: Precision, *, can_count: bool) -> ModelFlops:
        """Those of a model in its precision; the peak is measured, unless they cannot be counted."""
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        trained = sum(size for size, is_trained in sizes if is_trained)
        flops = cls(trained_share=trained / max(1, sum(size for size, _ in sizes)), can_count=can_count)
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

    def _set(self, forward: float) -> None:
        self.per_sample = forward * self._factor


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs per second of the fastest of a few matrix products in `dtype`, some 10 ms; 0 if memory is short."""
    try:
        return _measure(device, dtype)
    except torch.OutOfMemoryError:
        return 0.0
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what follows finds the memory as it was


def _measure(device: torch.device, dtype: torch.dtype) -> float:
    size = _SIZE.get(device.type, 256)
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    fastest_s = float("inf")
    for _ in range(_PRODUCTS):
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
    """Adds up torch's own formulas; runs every operation as it is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flops = 0
        self._report: Callable[[int], None] = lambda flops: None

    def of(self, report: Callable[[int], None]) -> _Counter:
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
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self._flops += formula(*args, **(kwargs or {}), out_val=result)
        elif func._overloadpacket is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:  # not in the registry
            self._flops += sdpa_flop_count(*(each.shape for each in args[:3]))  # type: ignore[attr-defined]
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if exception[0] is None:
            self._report(self._flops)
