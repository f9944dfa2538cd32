"""The trained weights as one rank holds them: in full, unless the model is sharded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from modules.distributed.local_updates import LocalUpdates


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is divided among the ranks, a DTensor; does not import torch's code for that, which takes a second."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    return dtensor is not None and isinstance(tensor, dtensor.DTensor)


class FullTensor(Protocol):
    """A full tensor, or one in a file, of which `[...]` is the whole and `[a:b]` some rows."""

    @property
    def shape(self) -> torch.Size: ...
    def __getitem__(self, rows: Any, /) -> Tensor: ...


class Weights:
    """The tensors that optimizer and EMA work on, by name, and their conversion to the full tensors of a checkpoint.

    In this class every rank holds the full tensors, so local and full are the same; ShardedWeights overrides that.
    Local tensors and gradients have the dtype and device of the model's parameters.
    """

    gradients_are_views = False  # into DDP's buckets, from step to step
    are_sharded = False  # divided among ranks
    shard_ranks: Sequence[int] = (0,)  # among whom; other groups of ranks, if any, hold the same as these
    shard_index = 0  # of this rank among those of its group
    outer: LocalUpdates | None = None  # what machines that average the weights now and then keep beside them

    def __init__(self, model: nn.Module) -> None:
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.model = model
        self.shapes = {name: weight.shape for name, weight in trained.items()}  # of the full tensors
        self.local: dict[str, nn.Parameter] = trained

    @property
    def machines(self) -> int:
        """How many groups of ranks train by themselves between two outer steps; 1: all average their gradients."""
        return 1 if self.outer is None else len(self.outer.machines.ranks)

    @property
    def num_trainable(self) -> int:
        """The number of trained values, over all ranks."""
        return sum(shape.numel() for shape in self.shapes.values())

    def summary(self) -> str:
        """A line for the terminal before the first step; empty if there is nothing to report."""
        return ""

    def leaf_tensors(self) -> Mapping[str, Tensor]:
        """The trained weights, with their full shapes, as leaves of the autograd graph; their data may be freed."""
        return self.local

    def collect_gradients(self) -> None:
        """After the last backward of a step: set `local[name].grad`, shaped like `local[name]`, clear all others."""

    def clear_gradients(self) -> None:
        """After a step: zero the gradients that are views, or else free them.

        Freed views would leave the buckets' memory unused while the next micro-batches accumulate in new tensors.
        Without buckets nothing is gained by keeping them: the memory serves samples and the next forward, and the next
        backward stores its gradients instead of adding them to zeros.
        """
        if self.gradients_are_views:
            torch._foreach_zero_([weight.grad for weight in self.local.values() if weight.grad is not None])
            return
        for weight in self.local.values():
            weight.grad = None

    def total_norm(self, local_norm: Tensor) -> Tensor:
        """The norm [] of the full gradient, from the norm [] of the local gradients; the same on all ranks."""
        return local_norm

    def over_shards(self, values: Tensor, how: Literal["sum", "max"]) -> Tensor:
        """`values` in fp64, each combined over the ranks that have a shard of the same tensors."""
        return values

    def swap(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """Exchange the values of `first`, which are `local`, with those of `second` by name, without a copy of all."""
        swap_storage(first, second)

    def reshard(self) -> None:
        """After forwards without a backward: return the model to its state between steps."""

    def shard(self, name: str, full: FullTensor) -> Tensor:
        """This rank's part, shaped like `local[name]`, of a tensor shaped like weight `name`; others unchanged."""
        return full[...]

    def rows(self, name: str, local: Tensor) -> tuple[int, int] | None:
        """The first row of `local` in the full tensor, shaped like weight `name`, and how many rows that has.

        None if `local` is whole.
        """
        return None

    def full_tensor(self, name: str, local: Tensor) -> Tensor:
        """The inverse of `shard`, on the CPU of rank 0 and empty elsewhere; called by all ranks in the same order."""
        return local

    def full_state_dict(self) -> dict[str, Tensor]:
        """`model.state_dict()` with full tensors, on rank 0: trained and frozen weights and buffers."""
        return dict(self.model.state_dict())

    @torch.no_grad()
    def load_full(self, full: Mapping[str, FullTensor]) -> None:
        """Load trained weights and, if present, buffers from full tensors, one after the other.

        Raises KeyError if a weight is missing, ValueError if a shape differs.
        """
        targets = {**self.local, **dict(self.model.named_buffers())}
        for name, target in targets.items():
            if name in self.local or name in full:
                expected = self.shapes.get(name, target.shape)
                if full[name].shape != expected:
                    raise ValueError(f"{name} has the shape {list(full[name].shape)} instead of {list(expected)}")
                target.copy_(self.shard(name, full[name]))


def swap_storage(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    """Exchange the memory of tensors with the same name, shape and dtype; the tensors stay the same objects."""
    for name, tensor in first.items():
        other = second[name]
        tensor.data, other.data = other.data, tensor.data


@torch.no_grad()
def swap_values(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    """Exchange the values of tensors with the same name and shape, also on different devices, one after the other."""
    for name, tensor in first.items():
        kept = tensor.to(second[name].device, copy=True)
        tensor.copy_(second[name])
        second[name].copy_(kept)
