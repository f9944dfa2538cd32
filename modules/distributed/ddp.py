"""Wrap the trained module in DistributedDataParallel with the settings of TrainConfig."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from modules.config import ConfigError, TrainConfig
from modules.distributed.process_group import Group
from modules.torch_compat import AnyBatchNorm, ddp_options

MIB = 2**20
MAX_ADAPTERS_MIB = 64  # up to this size, waiting for all gradients costs less than sending several buckets
# DDP's errors about a gradient that was complete already; the second one is that of static_graph.
DDP_REFUSALS = ("mark a variable ready only once", "training graph has changed in this iteration")
INT_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by element size in bytes


def wrap_ddp(
    model: nn.Module, config: TrainConfig, group: Group, over: dist.ProcessGroup | None = None
) -> DistributedDataParallel:
    """`model`, already on its device, wrapped so that the last backward of a step averages gradients over all ranks, or
    those of the group `over`.

    Every rank then has rank 0's weights; they are broadcast only if some rank's differ. Raises ConfigError if a
    setting does not work here.
    """
    if config.sync_batch_norm:
        model = with_sync_batch_norm(model, group)
    adapters = trains_only_adapters(model)
    # torch's PowerSGD waits for gloo on gloo's own two threads and deadlocks with several buckets in flight
    one_bucket = adapters or config.gradient_compression == "powersgd"
    same = same_on_all_ranks([*model.parameters(), *model.buffers()], group)
    if over is not None and not same:
        _broadcast_from_rank0(model)
    return DistributedDataParallel(
        model,
        process_group=over,
        bucket_cap_mb=max(config.bucket_cap_mb, gradients_mib(model)) if one_bucket else config.bucket_cap_mb,
        **ddp_options(sync_buffers=False, batched_copy=adapters),  # see BufferSync
        init_sync=over is None and not same,
        find_unused_parameters=config.find_unused_parameters,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
    )


def complete_gradient_sync(ddp: DistributedDataParallel) -> bool:
    """After an error within the backward that synchronises gradients: take part in its reduction to the end.

    DDP reduces a bucket once the gradients of all its weights are complete, so the other ranks wait for the buckets
    that the error left out. Every weight now gets a NaN gradient, which completes them: the gradient norm is then NaN
    on all ranks, and all skip the step. Weights whose gradient was complete are refused by DDP without a consequence.
    Returns False if that does not work, so that this rank must leave: after the last gradient, and with
    find_unused_parameters, where DDP would take weights that are unused in this step for used ones.
    """
    if ddp.find_unused_parameters and not ddp.static_graph:
        return False
    pending = [weight for weight in ddp.module.parameters() if weight.requires_grad]
    unused = []
    while True:
        had_none = [weight.grad is None for weight in pending]
        accepted = [_accepts_nan(weight) for weight in pending]
        unused += [w for w, none, taken in zip(pending, had_none, accepted, strict=True) if none and not taken]
        if all(accepted) or not any(accepted):
            break  # once the reduction is complete, DDP lets every gradient pass
    for weight in unused:
        weight.grad = None  # as on the other ranks: the optimizer leaves it alone
    return all(accepted)


def _accepts_nan(weight: Tensor) -> bool:
    """Give `weight` a NaN gradient; whether DDP waited for it, or for none at all."""
    try:
        # one value, expanded: a gradient of full size might not fit
        torch.autograd.backward([weight], [torch.full((), math.nan).to(weight).expand_as(weight)])
    except RuntimeError as error:
        if not any(text in str(error) for text in DDP_REFUSALS):
            raise
        return False
    return True


def trains_only_adapters(model: nn.Module) -> bool:
    """Whether a small part of the weights is trained and the rest is frozen.

    All gradients then go into one bucket with a single copy kernel; hundreds of small tensors would otherwise be
    copied one by one.
    """
    frozen = any(not weight.requires_grad for weight in model.parameters())
    return frozen and gradients_mib(model) <= MAX_ADAPTERS_MIB


def gradients_mib(model: nn.Module) -> int:
    """The size of all gradients in MiB, rounded up."""
    return math.ceil(sum(w.numel() * w.element_size() for w in model.parameters() if w.requires_grad) / MIB)


@torch.no_grad()
def _broadcast_from_rank0(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        sent = tensor.detach().contiguous()
        dist.broadcast(sent, src=0)
        tensor.copy_(sent)


def same_on_all_ranks(tensors: Sequence[Tensor], group: Group) -> bool:
    """Whether all ranks hold the same bits."""
    local = _fingerprint(tensors)
    lowest, highest = local.clone(), local.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=group.control)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group.control)
    return torch.equal(lowest, highest)


def _fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """An int64 hash [1] of all bits, shapes, dtypes and the order of the tensors."""
    filled = [_bits(tensor) for tensor in tensors if tensor.numel()]
    # hash the first element, too: XOR cannot tell an even number of ones from as many twos
    sums = [torch.hash_tensor(values) for bits in filled for values in (bits, bits.flatten()[:1])]
    shapes = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    digest = hashlib.sha256(repr((torch.stack(sums).tolist(), shapes)).encode()).digest()
    return torch.tensor([int.from_bytes(digest[:8], "little", signed=True)])


def _bits(tensor: Tensor) -> Tensor:
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return plain.view(INT_DTYPES[plain.element_size()])


def with_sync_batch_norm(model: nn.Module, group: Group) -> nn.Module:
    """`model` with SyncBatchNorm layers. Raises ConfigError on the CPU, where they are not supported, and for layers
    that do more than BatchNorm, which torch would replace nevertheless."""
    if group.device.type != "cuda":
        raise ConfigError(
            "sync_batch_norm is on, but it works on CUDA devices only; switch it off to train on the CPU."
        )
    kinds = {type(module) for module in model.modules() if isinstance(module, AnyBatchNorm)}
    own = [kind for kind in kinds if kind.forward not in (AnyBatchNorm.forward, nn.SyncBatchNorm.forward)]
    if own and all(kind.__module__.partition(".")[0] == "timm" for kind in own):
        from timm.layers import convert_sync_batchnorm  # knows its layers with an activation inside

        return cast(nn.Module, convert_sync_batchnorm(model))
    if own:
        raise ConfigError(
            f"sync_batch_norm is on, but {own[0].__name__} of this model does more than a BatchNorm, which would get "
            "lost; switch it off."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
