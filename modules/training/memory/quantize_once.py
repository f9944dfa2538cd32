"""Layers that are quantised on the CPU, where a run trains on it: once per machine, for all of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from modules.diffusion.quantized import BITS_DTYPES, SCALE_BYTES, quantize_, quantized_shape, replace_weight_
from modules.distributed import RankGroup, fill_once_per_machine

_CPU: Final = torch.device("cpu")
_ALIGNMENT: Final = 256  # bytes


def quantize_once(layers: Sequence[tuple[nn.Linear, str]], ranks: RankGroup) -> None:
    """Quantise frozen layers in place, each to its kind, to the same bits as `quantize_`; called by all ranks.

    What is kept lies in one piece of memory, also for a single rank: among the tensors of a step, the allocator would
    leave gaps between the layers that no tensor fits into.
    """
    if not layers:
        return
    starts, size = [], 0
    for layer, kind in layers:
        rows, width = quantized_shape(layer, kind)
        starts.append((size, size + _aligned(rows * width)))
        size = starts[-1][1] + _aligned(rows * SCALE_BYTES)

    def places(memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Bits and scales of each layer, as views."""
        found = []
        for (layer, kind), (start, of_scales) in zip(layers, starts, strict=True):
            rows, width = quantized_shape(layer, kind)
            bits = memory[start : start + rows * width].view(BITS_DTYPES[kind]).view(rows, width)
            scales = memory[of_scales : of_scales + rows * SCALE_BYTES].view(torch.float32).view(rows, 1)
            found.append((bits, scales))
        return found

    def fill(memory: Tensor) -> None:
        for (layer, kind), place in zip(layers, places(memory), strict=True):
            quantize_(layer, kind, _CPU, place)

    memory = fill_once_per_machine("quantised weights", size, fill, ranks)
    for (layer, _), (bits, scales) in zip(layers, places(memory), strict=True):
        replace_weight_(layer, bits, scales)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
