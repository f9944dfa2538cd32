"""DistributedDataParallel around the one trained module, with the settings of TrainConfig."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from modules.config import ConfigError, TrainConfig
from modules.distributed.process_group import Group

MIB = 2**20
ADAPTERS_MIB = 64  # up to this size, waiting for all gradients costs less than sending them in several parts
WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their size in bytes


def wrap_data_parallel(model: nn.Module, config: TrainConfig, group: Group) -> DistributedDataParallel:
    """`model`, already on its device, wrapped so that the last backward of a step averages gradients over all ranks.

    Every rank then has rank 0's weights; they are sent only where a rank's differ. Raises ConfigError where a setting
    cannot work here.
    """
    if config.sync_batch_norm:
        model = with_synchronised_batch_norm(model, group)
    adapters = trains_adapters(model)
    # torch's PowerSGD waits for gloo on gloo's own two threads: with several buckets under way it waits for ever
    one_bucket = adapters or config.gradient_compression == "powersgd"
    return DistributedDataParallel(
        model,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        forward_sync_buffers=config.broadcast_buffers,
        bucket_cap_mb=max(config.bucket_cap_mb, trained_mib(model)) if one_bucket else config.bucket_cap_mb,
        batched_grad_copy=adapters,
        init_sync=not same_everywhere(model, group),
        find_unused_parameters=config.find_unused_parameters,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
    )


def trains_adapters(model: nn.Module) -> bool:
    """Whether little is trained beside weights that stay as they are.

    All gradients then travel in one bucket, into which one kernel copies them: hundreds of small tensors would
    otherwise be copied one by one.
    """
    frozen = any(not weight.requires_grad for weight in model.parameters())
    return frozen and trained_mib(model) <= ADAPTERS_MIB


def trained_mib(model: nn.Module) -> int:
    """The size of all gradients in MiB, rounded up."""
    return math.ceil(sum(w.numel() * w.element_size() for w in model.parameters() if w.requires_grad) / MIB)


def same_everywhere(model: nn.Module, group: Group) -> bool:
    """Whether all ranks hold the same weights and buffers, to the bit: they then need not be sent."""
    own = _fingerprint([*model.parameters(), *model.buffers()])
    lowest, highest = own.clone(), own.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=group.control)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group.control)
    return torch.equal(lowest, highest)


def _fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """[1], which another bit anywhere, another shape or another order changes."""
    filled = [_bits(tensor) for tensor in tensors if tensor.numel()]
    # the first element as well: an exclusive or does not tell an even number of ones from as many twos
    sums = [torch.hash_tensor(part) for bits in filled for part in (bits, bits.flatten()[:1])]
    shapes = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    digest = hashlib.sha256(repr((torch.stack(sums).tolist(), shapes)).encode()).digest()
    return torch.tensor([int.from_bytes(digest[:8], "little", signed=True)])


def _bits(tensor: Tensor) -> Tensor:
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return plain.view(WHOLE_NUMBERS[plain.element_size()])


def with_synchronised_batch_norm(model: nn.Module, group: Group) -> nn.Module:
    """`model` with BatchNorms that average over all ranks. Raises ConfigError on the CPU, where there are none."""
    if group.device.type != "cuda":
        raise ConfigError(
            "sync_batch_norm is on, but it works on CUDA devices only; switch it off to train on the CPU."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
