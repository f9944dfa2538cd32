"""What is done to gradients on their way between the ranks: nothing, fewer bits, or PowerSGD's low ranks."""

# Without `from __future__ import annotations`: DDP compares the annotations of a hook with the classes themselves.

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from modules.config import ConfigError, TrainConfig


class Compression:
    """The exchange of a run; this one keeps nothing from one step to the next."""

    def begin_at(self, step: int) -> None:
        """Go on after `step` optimizer steps as if nothing had been exchanged before."""


class PowerSgd(Compression):
    """Sends each matrix of gradients as a product of two thin ones (https://arxiv.org/abs/1905.13727).

    What a rank could not send it adds to its next gradient. That memory is the rank's own and as large as the model, so
    no backup holds it: after each backup, and so after a resume from it, all ranks begin again without.
    """

    def __init__(self, rank: int, start_step: int) -> None:
        self._state = powerSGD_hook.PowerSGDState(
            process_group=dist.group.WORLD, matrix_approximation_rank=rank, start_powerSGD_iter=start_step
        )

    def begin_at(self, step: int) -> None:
        """Forget what was not sent, and draw the next matrices from the step."""
        for memory in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
            memory.clear()
        self._state.iter = step + 1  # the number of the step to come
        self._state.rng = numpy.random.RandomState(step)

    def exchange(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """The mean over all ranks, nearly."""
        index = bucket.index()
        sent: Future[torch.Tensor] = powerSGD_hook.powerSGD_hook(self._state, bucket)
        return sent.then(lambda done: self._keep_finite(index, done.value()))

    def _keep_finite(self, index: int, gradients: torch.Tensor) -> torch.Tensor:
        """A step with a non-finite gradient is passed over; remembered, it would spoil all that follow.

        `gradients` are the same on all ranks, so all forget together.
        """
        if not torch.isfinite(gradients).all():
            for memory in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
                memory.pop(index, None)
        return gradients


def compress_gradients(wrapped: DistributedDataParallel, config: TrainConfig) -> Compression:
    """Make `wrapped` send its gradients as `config.gradient_compression` says.

    Raises ConfigError where PowerSGD cannot handle the model.
    """
    match config.gradient_compression:
        case "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        case "bf16":
            wrapped.register_comm_hook(None, _in_bf16)
        case "powersgd":
            _check_no_scalars(wrapped.module)
            compression = PowerSgd(config.powersgd_rank, config.powersgd_start_step)
            wrapped.register_comm_hook(compression, _in_low_ranks)
            return compression
    return Compression()


def _in_bf16(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    # DDP refuses torch's hook by its name where there is no NCCL, but gloo sums bf16 too
    assert dist.group.WORLD is not None
    return default_hooks.bf16_compress_hook(dist.group.WORLD, bucket)


def _in_low_ranks(state: PowerSgd, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    return state.exchange(bucket)


def _check_no_scalars(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dim() == 0:
            raise ConfigError(
                f"gradient_compression is 'powersgd', which cannot send the single number {name!r} of this model; "
                "use 'fp16', 'bf16' or 'none'."
            )
