"""The same run with every weight divided among the ranks (FSDP2), for models that do not fit into one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from modules.config import TrainingError
from modules.distributed import SharedGradScaler, Weights, shard
from modules.families.family import Family
from modules.machine import hostname
from modules.training.distributed_trainer import DistributedTrainer
from modules.training.model_setup import compiled
from modules.training.precision import AUTOCAST
from modules.training.sampling import Deeds


class FullyShardedTrainer(DistributedTrainer):
    """One rank of such a run. In every forward all ranks meet, so whatever one computes, all compute."""

    meets_in_forward = True
    scaler_class = SharedGradScaler

    def place(self, family: Family) -> Weights:
        """Shards instead of the model; compiled after that, as the sharding hooks onto the model's own modules."""
        model, compute = family.model, AUTOCAST.get(self.config.precision)
        self.weights = shard(model, family.blocks(), self.config, self.group, compute)
        family.model = compiled(model) if self.config.compile else model
        self.begins_step = True
        return self.weights

    @contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        """Gradients are summed over the ranks in every micro-batch, unless there is room for whole ones."""
        if self.config.fsdp_whole_gradients:
            self.weights.reduce_gradients(now=last)
        if self.begins_step and self.config.broadcast_buffers:
            self.weights.share_buffers()
        self.begins_step = last
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"Out of memory on rank {self.replica_index} ({hostname()}). With training_mode fully_sharded the "
                "other ranks need this one in the middle of the step, so it cannot be passed over.",
                f"Set batch_size below {self.config.batch_size} (global_batch_size keeps the effective batch), "
                "gradient_checkpointing or fsdp_cpu_offload, then --resume latest.",
            ) from error

    def computed(self, deeds: Deeds) -> Deeds:
        """Every rank holds a part of the weights, so all compute; what there is to write waits until that is done."""
        return (deed for deed in list(deeds))
