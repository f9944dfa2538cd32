"""How a tensor of diffusers and its counterpart in the original layout differ in shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from modules.diffusion.transformer_files.original_name import OriginalName


def original_shape(original: OriginalName, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in the original layout, of a tensor that is not part of another one."""
    if original.form == "conv":
        return (*shape[:2], 1, 1)
    if original.form == "flat":
        return (math.prod(shape),)
    return shape[::-1] if original.form == "transposed" else shape


def is_of_shape(original: OriginalName, shape: tuple[int, ...], stored: tuple[int, ...]) -> bool:
    """Whether diffusers' tensor of this `shape` can be made of the original one, whose shape is `stored`."""
    if original.part is not None:
        parts = 3 if original.part < 3 and not original.is_grouped else 1
        rows = shape[0] * parts
        return len(stored) == len(shape) and stored[1:] == shape[1:] and stored[0] >= rows
    return original_shape(original, shape) == stored or (original.form == "conv" and shape == stored)


def part_rows(count: int, rows: int, columns: int) -> list[int]:
    """Of each of `count` parts of a fused layer's weight [rows, columns].

    Query, key and value are equal, and in single blocks as wide as the model; of grouped ones only the query is.
    """
    if count == 3 and columns < rows < 3 * columns:
        return [columns] + [(rows - columns) // 2] * 2
    return [rows // count] * count if count < 4 else [columns] * 3 + [rows - 3 * columns]


def to_original(original: OriginalName, tensors: Sequence[Tensor]) -> Tensor:
    """The original tensor of diffusers' one, or of all its parts."""
    if original.form in ("conv", "flat"):
        return tensors[0].reshape(original_shape(original, tuple(tensors[0].shape)))
    if original.form == "swapped":
        return torch.cat(tensors[0].chunk(2)[::-1])
    return tensors[0].T if original.form == "transposed" else torch.cat(list(tensors))


def to_diffusers(original: OriginalName, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """diffusers' tensor of this `shape`, of the original one, whose memory it shares where it can."""
    if original.part is not None:
        rows = shape[0]
        start = original.part * rows
        if original.part == 3:
            start = len(tensor) - rows
        elif original.is_grouped and original.part > 0:
            start = len(tensor) - (3 - original.part) * rows
        return tensor[start : start + rows]
    if original.form == "swapped":
        return torch.cat(tensor.chunk(2)[::-1])
    return tensor.T if original.form == "transposed" else tensor.reshape(shape)
