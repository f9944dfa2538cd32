"""Batches of any nesting: taking the tensors out of them, and putting others in."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence

import torch
from torch import Tensor


class _Slot:
    """Where a tensor was."""

    def __init__(self, number: int) -> None:
        self.number = number


def take_tensors(value: object) -> tuple[list[Tensor], object]:
    """The tensors in `value`, and its structure without them, for `put_tensors`.

    Looks into lists, tuples, mappings and dataclasses; everything else, and sparse tensors, stays in the structure.
    """
    tensors: list[Tensor] = []

    def take(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
            return leaf
        tensors.append(leaf.detach())
        return _Slot(len(tensors) - 1)

    return tensors, map_leaves(take, value)


def put_tensors(structure: object, tensors: Sequence[Tensor]) -> object:
    """The value that `take_tensors` has taken apart, with these tensors."""
    return map_leaves(lambda leaf: tensors[leaf.number] if isinstance(leaf, _Slot) else leaf, structure)


def map_leaves(change: Callable[[object], object], value: object) -> object:
    """`value` with everything in it that is not a list, tuple, mapping or dataclass replaced."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named one
        named: Callable[..., object] = type(value)
        return named(*(map_leaves(change, each) for each in value))
    if isinstance(value, list | tuple):
        items = [map_leaves(change, each) for each in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        changed = {key: map_leaves(change, each) for key, each in value.items()}
        return _of_same_kind(value, changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        same = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(same, field.name, map_leaves(change, getattr(value, field.name)))
        return same
    return change(value)


def _of_same_kind(like: Mapping[object, object], items: dict[object, object]) -> Mapping[object, object]:
    if type(like) is dict or not isinstance(like, MutableMapping):
        return items
    same = copy.copy(like)
    same.update(items)
    return same
