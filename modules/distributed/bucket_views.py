"""Gradients as views into DDP's buckets: from the first step on, and for the whole run."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def has_bucket_views(ddp: DistributedDataParallel) -> bool:
    """Whether gradients can stay in the buckets between steps: if every weight gets one in every step.

    Where weights may be unused, a gradient of None says so, and a zero would not: the optimizer would decay the weight.
    """
    return ddp.gradient_as_bucket_view and not (ddp.find_unused_parameters or ddp.static_graph)


def move_gradients_into_buckets(ddp: DistributedDataParallel) -> None:
    """Make every gradient a view into its bucket, with the value 0; called after a first backward, on all ranks.

    DDP replaces gradients by views only in a backward that synchronises. Gradients of micro-batches before that would
    be tensors of their own, as large as the buckets together. By now DDP knows the order of its buckets, so a backward
    whose only purpose is this one allocates the final ones.
    """
    model = ddp.module
    ddp.module = _ZeroLoss([weight for weight in model.parameters() if weight.requires_grad])
    try:
        ddp().backward()
    finally:
        ddp.module = model
    torch._foreach_zero_([weight.grad for weight in model.parameters() if weight.grad is not None])


class _ZeroLoss(nn.Module):
    """Depends on all weights with a gradient of 0."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__()
        self._used = tuple(weights)  # in a tuple, which registers none of them

    def forward(self) -> Tensor:
        return torch.stack([weight.sum().double() * 0 for weight in self._used]).sum()
