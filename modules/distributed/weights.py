"""The trained weights as one rank holds them: whole, unless the model is sharded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Weights:
    """What optimizer and EMA work on, by name, and the way between that and the whole tensors of a checkpoint.

    This is the plain way: every rank holds everything, so nothing is to be done.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.model = model
        self.shapes = {name: weight.shape for name, weight in trained.items()}  # of the whole weights
        self.own: dict[str, nn.Parameter] = trained

    @property
    def count(self) -> int:
        """How many numbers are trained, on all ranks together."""
        return sum(shape.numel() for shape in self.shapes.values())

    def opening(self) -> str:
        """A line for the terminal before the first step; empty where there is nothing to tell."""
        return ""

    def leaves(self) -> Mapping[str, Tensor]:
        """The trained weights as a forward's graph knows them; their data may be elsewhere."""
        return self.own

    def take_gradients(self) -> None:
        """After the last backward of a step: the gradients are at `own`, and nowhere else."""

    def total_norm(self, own: Tensor) -> Tensor:
        """The norm [] of the whole gradient, given the norm [] of what is at `own`; the same on all ranks."""
        return own

    def settle(self) -> None:
        """After forwards without a backward: the model rests as it does between steps."""

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What this rank holds of `whole`, which is as large as weight `name`; anything else comes back as it is."""
        return whole

    def whole(self, name: str, own: Tensor) -> Tensor:
        """The way back, on the CPU of rank 0 (elsewhere it is empty): all ranks call it for the same in one order."""
        return own

    def whole_model(self) -> dict[str, Tensor]:
        """`model.state_dict()`, whole, on rank 0: trained weights, frozen ones and buffers."""
        return dict(self.model.state_dict())

    @torch.no_grad()
    def load(self, whole: Mapping[str, Tensor]) -> None:
        """Take over whole weights and buffers.

        Raises KeyError where a weight is missing, ValueError where one has another shape.
        """
        own = {**self.own, **dict(self.model.named_buffers())}
        for name, target in own.items():
            if name in self.own or name in whole:
                _check_shape(name, whole[name], self.shapes.get(name, target.shape))
                target.copy_(self.part(name, whole[name]))


def _check_shape(name: str, given: Tensor, expected: torch.Size) -> None:
    if given.shape != expected:
        raise ValueError(f"{name} has the shape {list(given.shape)} instead of {list(expected)}")
