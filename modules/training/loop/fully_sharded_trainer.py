"""The same run with every weight divided among the ranks (FSDP2), for models that do not fit into one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from modules.checkpoint import Rotation
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.quantized import QuantizedLinear
from modules.distributed import DistributedRanks, Weights
from modules.distributed.fsdp import FsdpGradScaler, apply_fsdp, shard_groups
from modules.families._family import Family
from modules.training.backup.sharded import sharded_backup_writer
from modules.training.backup.writer import BackupWriter
from modules.training.loop.distributed_trainer import DistributedTrainer
from modules.training.memory.model_setup import compile_model
from modules.training.memory.move_model import move_model
from modules.training.step.memory_guard import step_cannot_be_skipped


class FullyShardedTrainer(DistributedTrainer):
    """One rank of an FSDP run. Every forward is a collective, so whatever one rank computes, all compute."""

    syncs_in_forward = True
    scaler_class = FsdpGradScaler

    def setup(self) -> None:
        """Refuses machines that cannot replicate each other before anything is loaded."""
        shard_groups(self.config, self.process_group)
        super().setup()

    def wrap_model(self, family: Family) -> Weights:
        """Shards instead of the model; compiled after that, as the sharding hooks onto the model's own modules."""
        model, compute = family.model, HALF_DTYPES.get(self.config.precision)
        convert = partial(move_model, family, self.config, torch.device("cpu"))
        self.weights = apply_fsdp(model, family.blocks(), self.config, self.process_group, compute, convert)
        for layer in model.modules():
            if isinstance(layer, QuantizedLinear):  # whole on each rank: what is quantised is not sharded
                layer.move(self.ranks.device)
        family.model = compile_model(model) if self.config.compile else model
        return self.weights

    def backup_writer(self, rotation: Rotation) -> BackupWriter:
        """Each rank writes its shards; of replicas, those of rank 0's machine do."""
        assert isinstance(self.ranks, DistributedRanks), "see the worker"
        merges = self.config.backup_every.unit == "minutes"
        owners = self.weights.shard_ranks
        return sharded_backup_writer(self.folder.backup_dir, rotation, self.ranks, owners, self.report, merges=merges)

    @contextmanager
    def no_sync(self, last: bool) -> Iterator[None]:
        """Gradients are summed over the ranks that divide them in every micro-batch, unless there is room for whole
        ones, and over replicas in the last one; if sums are in bf16, in which torch would add up the micro-batches
        until then, in every one."""
        if self.config.fsdp_whole_gradients:
            self.weights.set_gradient_sync(enabled=last)
        elif self.weights.replicas > 1 and self.config.fsdp_reduce_precision != "bf16":
            self.weights.set_replica_sync(enabled=last)
        remedies = (
            f"Set batch_size below {self.config.batch_size} (global_batch_size keeps the effective batch), "
            "gradient_checkpointing or fsdp_cpu_offload"
        )
        with step_cannot_be_skipped(self.ranks.rank, "training_mode fully_sharded", remedies):
            yield
