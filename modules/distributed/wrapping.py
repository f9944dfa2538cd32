"""DistributedDataParallel around the one trained module, with the settings of TrainConfig."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from modules.config import ConfigError, TrainConfig
from modules.distributed.process_group import Group


def wrap_data_parallel(model: nn.Module, config: TrainConfig, group: Group) -> DistributedDataParallel:
    """`model`, already on its device, wrapped so that the last backward of a step averages gradients over all ranks.

    Raises ConfigError where a setting cannot work on this backend.
    """
    if config.sync_batch_norm:
        model = _with_synchronised_batch_norm(model, group)
    wrapped = DistributedDataParallel(
        model,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        forward_sync_buffers=config.broadcast_buffers,
        bucket_cap_mb=config.bucket_cap_mb,
        find_unused_parameters=config.find_unused_parameters,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
    )
    _compress_gradients(wrapped, config.gradient_compression, group)
    return wrapped


def _with_synchronised_batch_norm(model: nn.Module, group: Group) -> nn.Module:
    if group.device.type != "cuda":
        raise ConfigError(
            "sync_batch_norm is on, but it works on CUDA devices only; switch it off to train on the CPU."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


def _compress_gradients(wrapped: DistributedDataParallel, compression: str, group: Group) -> None:
    match compression:
        case "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        case "bf16" if group.backend != "nccl":
            raise ConfigError(
                f"gradient_compression is 'bf16', which the backend {group.backend} cannot send; "
                "use 'fp16', 'powersgd' or 'none', or the nccl backend."
            )
        case "bf16":
            wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
        case "powersgd":
            state = powerSGD_hook.PowerSGDState(
                process_group=torch.distributed.group.WORLD, matrix_approximation_rank=2
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
