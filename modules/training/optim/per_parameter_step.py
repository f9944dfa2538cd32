"""The steps of an optimizer, one weight at a time; those in bf16 are rounded up or down at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from modules.data.rng import hash_bytes, hash_uint64

_PIECE: Final = 1 << 24  # values that are rounded at a time
_CUT_OFF: Final = 1 << 16  # values of the 16 bits of fp32 that bf16 does not have


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


def fp32_stand_in(weight: nn.Parameter) -> nn.Parameter:
    """What an optimizer holds in place of a bf16 `weight`: shaped like it, in fp32, with the memory of one value."""
    return nn.Parameter(torch.zeros((), device=weight.device).expand(weight.shape))


def seed_of(seed: int, step: int, name: str) -> int:
    """64 bits for the rounding of the weight `name` in a step: the same on all ranks and in a resumed run."""
    return int(hash_uint64(seed, step, hash_bytes(name.encode()))[0])


@torch.no_grad()
def round_stochastically_(weight: Tensor, values: Tensor, seed: int, first: int = 0) -> None:
    """Set a bf16 `weight` to contiguous fp32 `values` of its shape, rounded at random; `values` become the result.

    Of a shard, `first` is the place of its first value in the whole weight, which is so rounded alike however it is
    divided. Random bits are added to the 16 that bf16 does not have, which are then cut off. Values of bf16 stay as
    they are.

    The nearest bf16 value is the weight itself if an update is below 1/256 of it, so that nothing is learned. Rounded
    up with the probability of what is cut off, updates count on average (Zamirai et al. 2020, arXiv:2010.06192).
    """
    bits = values.view(-1).view(torch.int32)
    for start in range(0, len(bits), _PIECE):
        piece = bits[start : start + _PIECE]
        piece.add_(random_bits(first + start, len(piece), seed, bits.device)).bitwise_and_(-_CUT_OFF)
    weight.copy_(values)


def random_bits(first: int, count: int, seed: int, device: torch.device) -> Tensor:
    """int32 [count] in [0, 65536): bits `first` and those after it of the stream `seed`, on any device alike.

    torch's own generators depend on the model of the GPU: ranks would round differently and drift apart. A hash of the
    place, the finaliser of MurmurHash3 (Appleby 2011), makes the bits of two places.
    """
    skipped = first % 2
    state = torch.arange((skipped + count + 1) // 2, dtype=torch.int32, device=device)
    state.add_(_signed(seed + first // 2))
    _shift_xor(state, 16).mul_(_signed(0x85EBCA6B)).bitwise_xor_(_signed(seed >> 32))
    _shift_xor(state, 13).mul_(_signed(0xC2B2AE35))
    _shift_xor(state, 16)
    return state.view(torch.int16)[skipped : skipped + count].to(torch.int32).bitwise_and_(_CUT_OFF - 1)


def _shift_xor(state: Tensor, by: int) -> Tensor:
    """x ^= x >> by, of unsigned 32 bits."""
    return state.bitwise_xor_((state >> by).bitwise_and_((1 << (32 - by)) - 1))


def _signed(value: int) -> int:
    """The lower 32 bits as an int32."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
