"""Gradient compression between the ranks: none, half precision, or PowerSGD's low-rank approximation."""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with the classes themselves.

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from modules.config import ConfigError, TrainConfig
from modules.distributed.host_copy import HostCopy


class Compression:
    """The state that compression keeps between steps; here none."""

    def reset(self, step: int) -> None:
        """Continue after `step` optimizer steps without any memory of earlier ones."""


class PowerSgd(Compression):
    """PowerSGD (algorithm 1 of https://arxiv.org/abs/1905.13727): sends a gradient M [n, m] as P Q^T.

    P [n, r] and Q [m, r] come from one power iteration: P = orthogonalise(mean(M Q)), Q = mean(M^T P). The error
    M - P Q^T is added to the rank's next gradient. This memory differs by rank and is as large as the model, so backups
    do not hold it: after each backup, and thus after resuming from it, all ranks start without it.
    """

    def __init__(self, rank: int, start_step: int) -> None:
        self._state = powerSGD_hook.PowerSGDState(
            process_group=dist.group.WORLD, matrix_approximation_rank=rank, start_powerSGD_iter=start_step
        )
        self._was_finite: dict[int, HostCopy] = {}  # by bucket: whether its last gradients were finite
        self._memories = (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict)

    def reset(self, step: int) -> None:
        """Forget the errors, and seed the next Q with the step."""
        for memory in self._memories:
            memory.clear()
        self._was_finite.clear()
        self._state.iter = step + 1  # the number of the next step
        self._state.rng = numpy.random.RandomState(step)

    def all_reduce(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """The approximate mean over all ranks of the bucket's flat gradients [N], in their dtype."""
        index = bucket.index()
        self._forget_if_not_finite(index)
        reduced: Future[torch.Tensor] = powerSGD_hook.powerSGD_hook(self._state, bucket)
        return reduced.then(lambda done: self._note_finite(index, done.value()))

    def _note_finite(self, index: int, gradients: torch.Tensor) -> torch.Tensor:
        """On its way to the host until the next step, which would otherwise wait for the device here."""
        self._was_finite[index] = HostCopy(torch.isfinite(gradients).all())
        return gradients

    def _forget_if_not_finite(self, index: int) -> None:
        """Forget a non-finite gradient: its step was skipped, but its error would carry over to all later steps.

        The gradients are the same on all ranks, so all forget at the same step.
        """
        was_finite = self._was_finite.pop(index, None)
        if was_finite is not None and not was_finite.read()[0]:
            for memory in self._memories:
                memory.pop(index, None)


def register_compression_hook(wrapped: DistributedDataParallel, config: TrainConfig) -> Compression:
    """Register the DDP communication hook for `config.gradient_compression`; returns its state.

    Raises ConfigError if PowerSGD cannot handle the model.
    """
    match config.gradient_compression:
        case "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        case "bf16":
            wrapped.register_comm_hook(None, _bf16_hook)
        case "powersgd":
            _check_no_scalars(wrapped.module)
            compression = PowerSgd(config.powersgd_rank, config.powersgd_start_step)
            wrapped.register_comm_hook(compression, PowerSgd.all_reduce)
            return compression
    return Compression()


def _bf16_hook(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    # DDP rejects torch's own hook by name without NCCL, but gloo can sum bf16, too
    assert dist.group.WORLD is not None
    return default_hooks.bf16_compress_hook(dist.group.WORLD, bucket)


def _check_no_scalars(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dim() == 0:
            raise ConfigError(
                f"gradient_compression is 'powersgd', which cannot compress the scalar {name!r} of this model; "
                "use 'fp16', 'bf16' or 'none'."
            )
