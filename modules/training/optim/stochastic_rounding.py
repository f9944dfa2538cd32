"""bf16 weights that learn from small updates: computed in fp32, and rounded up or down at random.

The nearest bf16 value is the weight itself if an update is below 1/256 of it, so that nothing is learned. Rounded up
with the probability of the part that is cut off, updates count on average (Zamirai et al. 2020, arXiv:2010.06192).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from modules.data.rng import hash_bytes, hash_uint64

_PIECE: Final = 1 << 24  # values that are rounded at a time
_CUT_OFF: Final = 1 << 16  # values of the 16 bits of fp32 that bf16 does not have


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
