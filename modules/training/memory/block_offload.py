"""Blocks whose frozen weights stay in host memory: two at a time are on the device, one in use and the next.

diffusers' group offloading (hooks/group_offloading.py) moves parameters in forwards only: a backward without gradient
checkpointing keeps every weight that it needs on the device, and one with it asks for the blocks in reverse, which are
not prefetched. Here the layers themselves ask for their bits, in either direction, and autograd saves none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from modules.diffusion.quantized import QuantizedLinear
from modules.torch_compat import in_backward
from modules.training.device.pinned_memory import pinned_memory

_ALIGNMENT: Final = 256  # bytes, of a layer's place in a buffer
_SLOTS: Final = 2


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that the classes of diffusers within `model` repeat, in order; those not to be split if none do."""
    for attribute in ("_repeated_blocks", "_no_split_modules"):
        names = {name for module in model.modules() for name in getattr(module, attribute, None) or ()}
        if blocks := [module for module in model.modules() if type(module).__name__ in names]:
            return blocks
    return []


def offloaded_blocks(model: nn.Module, fraction: float) -> list[list[nn.Linear]]:
    """The frozen linear layers of each block to offload: `fraction` of those with any, spread evenly.

    Between two of them the device computes the others, while the next one arrives.
    """
    found, taken = [], set[nn.Module]()
    for block in repeated_blocks(model):
        linear = (layer for layer in block.modules() if isinstance(layer, nn.Linear) and layer not in taken)
        layers = [layer for layer in linear if _is_frozen(layer)]
        taken.update(layers)
        if layers:
            found.append(layers)
    count = math.ceil(fraction * len(found))
    return [found[number * len(found) // count] for number in range(count)]


def aligned(size: int) -> int:
    """The bytes that `size` bytes of a layer take in the buffer of their block."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _is_frozen(layer: nn.Linear) -> bool:
    is_plain = type(layer) in (nn.Linear, QuantizedLinear)
    return is_plain and not any(weight.requires_grad for weight in layer.parameters())


@dataclass(frozen=True)
class _Place:
    """A layer's bits in the buffer of its block, in bytes."""

    block: int
    start: int
    size: int
    dtype: torch.dtype
    shape: torch.Size

    def view(self, buffer: Tensor) -> Tensor:
        return buffer[self.start : self.start + self.size].view(self.dtype).view(self.shape)


class BlockOffload:
    """Lends the bits of layers that are used block by block, forwards and, in a backward, backwards.

    A block is copied on a stream of its own while the one before it computes, into one of two buffers, so that the
    device never holds more. The CPU copies as well, which moves nothing and costs time.
    """

    def __init__(self, blocks: Sequence[Sequence[QuantizedLinear]], device: torch.device) -> None:
        """Takes over the bits of the layers, which are on the CPU."""
        self._places: dict[QuantizedLinear, _Place] = {}
        self._host = [self._pack(number, layers, device) for number, layers in enumerate(blocks)]
        largest = max(len(buffer) for buffer in self._host)
        self._slots = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(_SLOTS)]
        self._in_slot: list[int | None] = [None] * _SLOTS  # the number of a block
        self._arrived: list[torch.cuda.Event | None] = [None] * _SLOTS  # not waited for yet
        self._current = -1
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.copies = 0  # of blocks to the device, so far

    @property
    def host_bytes(self) -> int:
        """What is kept in host memory."""
        return sum(len(buffer) for buffer in self._host)

    def lend(self, layer: QuantizedLinear) -> Tensor:
        """The bits of `layer` on the device, until those of another block are asked for."""
        place = self._places[layer]
        if place.block != self._current:
            self._enter(place.block)
        slot = self._in_slot.index(place.block)
        if (event := self._arrived[slot]) is not None:
            torch.cuda.current_stream(self._slots[slot].device).wait_event(event)
            self._arrived[slot] = None
        return place.view(self._slots[slot])

    def _enter(self, block: int) -> None:
        """Make `block` the current one, and let the one that is used after it come."""
        self._current = block
        self._fetch(block, self._in_slot[0])
        step = -1 if in_backward() else 1
        if 0 <= block + step < len(self._host):
            self._fetch(block + step, block)

    def _fetch(self, block: int, kept: int | None) -> None:
        """Copy a block into the slot that does not hold `kept`, unless it is there."""
        if block in self._in_slot:
            return
        slot = next(number for number, held in enumerate(self._in_slot) if held is None or held != kept)
        self._in_slot[slot] = block
        self.copies += 1
        buffer, source = self._slots[slot], self._host[block]
        if self._stream is None:
            buffer[: len(source)].copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream(buffer.device))  # which may still read the slot
        with torch.cuda.stream(self._stream):
            buffer[: len(source)].copy_(source, non_blocking=True)
            self._arrived[slot] = self._stream.record_event()

    def _pack(self, block: int, layers: Sequence[QuantizedLinear], device: torch.device) -> Tensor:
        """The bits of a block, one after the other; uint8 [bytes], pinned for a GPU."""
        start = 0
        for layer in layers:
            bits = layer._bits
            self._places[layer] = _Place(block, start, bits.nbytes, bits.dtype, bits.shape)
            start += aligned(bits.nbytes)
        is_pinned = device.type == "cuda"
        buffer = pinned_memory(start, device) if is_pinned else torch.zeros(start, dtype=torch.uint8)
        for layer in layers:
            place = self._places[layer]
            place.view(buffer).copy_(layer._bits)
            layer._bits, layer.lender = place.view(buffer), self
        return buffer
