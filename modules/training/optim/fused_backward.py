"""The optimizer's step inside the backward: each weight is updated, and its gradient freed, as soon as it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from modules.distributed import Weights
from modules.machine import hostname
from modules.training.optim.optimizers import GuardedStep
from modules.training.step.memory_guard import OutOfMemory, is_out_of_memory


class FusedBackward:
    """Hooks on the trained weights, for one device (Lv et al. 2023, arXiv:2306.09782, section 3.1).

    Only in `step` they update; in any other backward gradients add up as usual, as those of a step's first
    micro-batches. The update is that of GuardedStep, to the bit, without clipping.
    """

    def __init__(self, guarded_step: GuardedStep, weights: Weights) -> None:
        assert guarded_step.per_parameter is not None, "built with it"
        self._weights = weights
        self._guarded_step, self._per_parameter = guarded_step, guarded_step.per_parameter
        self._mode: Literal["add", "step", "discard"] = "add"
        self._frozen: Sequence[bool] = ()
        self._number = 0  # of the step
        self._norms: list[Tensor] = []
        self._zero = self._fault = torch.zeros((), device=next(iter(weights.local.values())).device)
        for weight in weights.local.values():
            weight.register_post_accumulate_grad_hook(self._on_gradient)

    def step(self, loss: Tensor, frozen: Sequence[bool], number: int) -> None:
        """Backward of `loss` [] and step `number` of all weights but those of `frozen` groups.

        If the loss is not finite, nothing changes; the device finds that, and the host waits for nothing. Optimizers
        that are not fused have to be skipped by the host, which waits for the norm of each gradient.
        Raises OutOfMemory: some weights may have their step already, so it cannot be repeated.
        """
        self._frozen, self._number = frozen, number
        self._fault = (loss.detach() * 0).float()  # nan unless the loss is finite
        self._norms = [self._fault]
        try:
            with self._in("step"):
                loss.backward()
            self._guarded_step.is_restored = False
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"Out of memory ({hostname()}) in a backward with fused_backward, which had updated some weights.",
                "Set a lower batch_size or gradient_checkpointing, then --resume latest.",
            ) from error

    def finish(self) -> Tensor:
        """After `step`: the norm [] of the gradient; not finite if the loss, or a part of the gradient, was not.

        Weights whose own gradient is not finite have not changed.
        """
        self._per_parameter.finish()
        self._weights.clear_gradients()
        norms, self._norms = self._norms, []
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms)) if norms else self._zero
        return norm

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Inside the block gradients are freed at once and change nothing: as much memory as a step takes."""
        with self._in("discard"):
            yield

    @contextmanager
    def _in(self, mode: Literal["step", "discard"]) -> Iterator[None]:
        self._mode = mode
        try:
            yield
        finally:
            self._mode = "add"

    def _on_gradient(self, weight: Tensor) -> None:
        if self._mode == "add":
            return
        is_frozen = bool(self._frozen) and self._frozen[self._per_parameter.group_of(weight)]
        if self._mode == "step" and not is_frozen:
            self._norms.append(self._guarded_step.step_one(weight, self._number, self._fault))
        weight.grad = None
