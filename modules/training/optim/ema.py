"""An exponential moving average of the trained weights, used for samples, validation and saved models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from modules.distributed.weights import swap_storage, swap_values
from modules.training.device.pinned_memory import host_places

Tensors: TypeAlias = Mapping[str, Tensor]


def decay_for_batch(decay: float, batch: int, reference: int | None) -> float:
    """The decay per step with which the average covers as many samples as `decay` does at the batch size `reference`.

    decay ** (batch / reference): the EMA scaling rule of Busbridge et al. 2023 (arXiv:2307.13813), definition 1.2.
    """
    return decay if reference is None else float(decay ** (batch / reference))


class Ema:
    """The averaged copy of the trainable weights.

    The decay ramps up as (1 + step) / (10 + step), so that early steps soon lose their weight (as in tf.train's
    ExponentialMovingAverage). It depends on the step alone, so a resumed run averages in the same way.

    Buffers, such as BatchNorm's running averages, are the model's own, as in torch.optim.swa_utils.AveragedModel with
    use_buffers=False; timm's ModelEmaV2 averages them, too.
    """

    def __init__(
        self,
        weights: Tensors,
        decay: float,
        swap: Callable[[Tensors, Tensors], None] = swap_storage,
        every: int = 1,
        *,
        on_cpu: bool = False,
    ) -> None:
        """`swap` exchanges the values of two mappings, as Weights.swap does; `every` so many steps it is updated."""
        self._weights = dict(weights)
        self._swap = swap_values if on_cpu else swap
        self._limit, self._every = decay, every
        host = "cpu" if on_cpu else None
        # in bf16 it would stay as it is: a step of 0.001 is far below its precision
        self._has_half = any(weight.dtype == torch.bfloat16 for weight in weights.values())
        self._average = {
            name: weight.detach().to(host, _average_dtype(weight), copy=True) for name, weight in weights.items()
        }
        self._arriving = _HostCopies(self._weights) if on_cpu else None
        self._share: float | None = None  # of the weights that are on their way, in the average

    @property
    def average(self) -> Tensors:
        """The averaged weights by name. With `on_cpu`, waits until the last update's have arrived."""
        if self._arriving is not None and self._share is not None:
            for name, weight in self._arriving.wait().items():
                self._average[name].lerp_(weight.to(self._average[name].dtype), self._share)
            self._share = None
        return self._average

    def update(self, step: int, since: int | None = None) -> None:
        """Move towards the current weights after optimizer step `step` (1-based), if one is due.

        With `since`, an update is due now, and so many steps have been made since the last one.

        With `on_cpu` they are sent to the host, and averaged there after the next step, or as soon as it is asked for.
        """
        average = self.average
        if since is None and step % self._every:
            return
        share = 1 - min(self._limit, (1 + step) / (10 + step)) ** (since or self._every)
        if self._arriving is not None:
            self._arriving.send()
            self._share = share
            return
        if self._has_half:
            for name, weight in self._weights.items():
                average[name].lerp_(weight.detach().to(average[name].dtype), share)
            return
        current = [weight.detach() for weight in self._weights.values()]
        torch._foreach_lerp_(list(average.values()), current, share)

    def load(self, average: Tensors) -> None:
        """Load a saved average. Raises KeyError if it lacks a weight, ValueError if one has another shape."""
        for name, tensor in self.average.items():
            saved = average[name]  # once: it may come from a file
            if saved.shape != tensor.shape:
                raise ValueError(f"the average of {name} has the shape {list(saved.shape)}")
            tensor.copy_(saved)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the averaged weights inside the block, and `average` the model's own; then again their own.

        The device holds no more than one copy of what is trained besides, and none with the average in host memory.
        The average of bf16 weights, which is in fp32, stays where it is; the weights are kept in host memory.
        """
        if self._has_half:
            with self._copied():
                yield
            return
        self._swap(self._weights, self.average)
        try:
            yield
        finally:
            self._swap(self._weights, self.average)

    @contextmanager
    def _copied(self) -> Iterator[None]:
        own = {name: weight.detach().to("cpu", copy=True) for name, weight in self._weights.items()}
        try:
            _copy(self.average, self._weights)
            yield
        finally:
            _copy(own, self._weights)


class _HostCopies:
    """Copies of weights in host memory, to which a GPU brings them in the order of its work."""

    def __init__(self, weights: Tensors) -> None:
        self._weights = weights
        self._copies = dict(zip(weights, host_places(weights.values()), strict=True))
        self._sent: torch.cuda.Event | None = None

    def send(self) -> None:
        """Copy the weights as they are at this point of the GPU's work."""
        current = [weight.detach() for weight in self._weights.values()]
        torch._foreach_copy_(list(self._copies.values()), current, non_blocking=True)
        if any(weight.is_cuda for weight in current):
            self._sent = torch.cuda.Event()
            self._sent.record()

    def wait(self) -> Tensors:
        """The copies by name, once they have arrived."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._copies


@torch.no_grad()
def _copy(values: Tensors, weights: Tensors) -> None:
    for name, weight in weights.items():
        weight.copy_(values[name])


def _average_dtype(weight: Tensor) -> torch.dtype:
    return torch.float32 if weight.dtype == torch.bfloat16 else weight.dtype
