"""The same run with every weight divided among the ranks (FSDP2), for models that do not fit into one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from modules.diffusion.dtypes import HALF_DTYPES
from modules.distributed import Weights
from modules.distributed.fsdp import FsdpGradScaler, apply_fsdp
from modules.families._family import Family
from modules.machine import hostname
from modules.training.distributed_trainer import DistributedTrainer
from modules.training.memory_guard import OutOfMemory, is_out_of_memory
from modules.training.model_setup import compile_model
from modules.training.move_model import move_model


class FullyShardedTrainer(DistributedTrainer):
    """One rank of an FSDP run. Every forward is a collective, so whatever one rank computes, all compute."""

    syncs_in_forward = True
    scaler_class = FsdpGradScaler

    def wrap_model(self, family: Family) -> Weights:
        """Shards instead of the model; compiled after that, as the sharding hooks onto the model's own modules."""
        model, compute = family.model, HALF_DTYPES.get(self.config.precision)
        convert = partial(move_model, family, self.config, torch.device("cpu"))
        self.weights = apply_fsdp(model, family.blocks(), self.config, self.process_group, compute, convert)
        family.model = compile_model(model) if self.config.compile else model
        return self.weights

    @contextmanager
    def no_sync(self, last: bool) -> Iterator[None]:
        """Gradients are summed over the ranks in every micro-batch, unless there is room for whole ones."""
        if self.config.fsdp_whole_gradients:
            self.weights.set_gradient_sync(enabled=last)
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"Out of memory on rank {self.ranks.rank} ({hostname()}). With training_mode fully_sharded the "
                "other ranks need this one in the middle of the step, so the step cannot be skipped.",
                f"Set batch_size below {self.config.batch_size} (global_batch_size keeps the effective batch), "
                "gradient_checkpointing or fsdp_cpu_offload, then --resume latest.",
            ) from error
