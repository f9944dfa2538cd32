"""The module itself, without what PyTorch puts around it."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unwrapped(module: nn.Module) -> nn.Module:
    """The module within DistributedDataParallel, DataParallel and torch.compile, whose parameters are the same."""
    while True:
        is_parallel = isinstance(module, DistributedDataParallel | nn.DataParallel)
        inner = module.module if is_parallel else getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner
