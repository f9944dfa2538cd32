"""The steps of an optimizer, one weight at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modules.training.optim.stochastic_rounding import fp32_stand_in, round_stochastically_, seed_of


def optimizer_weights(weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """What the optimizer holds for each weight: the weight, or a stand-in for one in bf16."""
    return {
        name: fp32_stand_in(weight) if weight.dtype == torch.bfloat16 else weight for name, weight in weights.items()
    }


@dataclass(frozen=True)
class _Entry:
    name: str
    group: int  # of the optimizer
    held: nn.Parameter  # by the optimizer
    first: int  # the place of its first value in the whole weight, if this is a shard


class PerParameterStep:
    """Updates one weight after the other, to the same bits as a step of all; those in bf16 are rounded stochastically.

    What a step changes in a group as a whole, such as the number of steps, changes once, by `finish`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Mapping[str, nn.Parameter],
        held: Mapping[str, nn.Parameter],
        seed: int,
        rows: Callable[[str, Tensor], tuple[int, int] | None] = lambda name, local: None,
    ) -> None:
        """`held` as `optimizer_weights` returns them, of which the groups of `optimizer` consist; `rows` as that of
        Weights."""
        groups = {id(own): number for number, group in enumerate(optimizer.param_groups) for own in group["params"]}
        self.held = dict(held)
        self._optimizer = optimizer
        self._weights = list(weights.values())
        self._entries = {
            id(weight): _Entry(name, groups[id(held[name])], held[name], _place(weight, rows(name, weight)))
            for name, weight in weights.items()
        }
        self._seed = seed
        self._after: dict[int, dict[str, Any]] = {}  # settings of groups after the step

    def group_of(self, weight: Tensor) -> int:
        """The number of the optimizer's group that a weight is in."""
        return self._entries[id(weight)].group

    def has_state(self, weight: Tensor) -> bool:
        """Whether the optimizer has made a step of a weight."""
        return self._entries[id(weight)].held in self._optimizer.state

    def step_all(self, number: int) -> None:
        """The step `number` of all weights that have a gradient."""
        for weight in self._weights:
            if weight.grad is not None:
                self.step(weight, number)
        self.finish()

    @torch.no_grad()
    def step(self, weight: Tensor, number: int) -> None:
        """The step `number` of one weight, from its gradient."""
        entry = self._entries[id(weight)]
        if entry.held is weight:
            self._step_alone(entry)
            return
        assert weight.grad is not None, "see step_all"
        held, empty = entry.held, entry.held.data
        held.data = weight.to(torch.float32, memory_format=torch.contiguous_format)
        held.grad = weight.grad.to(torch.float32, memory_format=torch.contiguous_format)
        try:
            self._step_alone(entry)
            round_stochastically_(weight, held.data, seed_of(self._seed, number, entry.name), entry.first)
        finally:
            held.grad, held.data = None, empty

    def finish(self) -> None:
        """After the last weight of a step."""
        for number, group in self._after.items():
            self._optimizer.param_groups[number].update({key: group[key] for key in group if key != "params"})
        self._after = {}

    def _step_alone(self, entry: _Entry) -> None:
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        alone = {**groups[entry.group], "params": [entry.held]}
        optimizer.param_groups = [alone]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = groups
        self._after[entry.group] = alone


def _place(weight: Tensor, rows: tuple[int, int] | None) -> int:
    return 0 if rows is None else rows[0] * math.prod(weight.shape[1:])
