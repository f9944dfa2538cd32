"""The same run on several processes: DistributedDataParallel around the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DataParallel

from modules.config import TrainConfig
from modules.data.batch import Batch
from modules.distributed import (
    BufferSync,
    Compression,
    DistributedRanks,
    Weights,
    check_unused_parameters,
    complete_gradient_sync,
    explain_ddp_errors,
    has_bucket_views,
    move_gradients_into_buckets,
    register_compression_hook,
    wrap_ddp,
)
from modules.families._family import Family
from modules.monitoring import Report
from modules.run import RunFolder
from modules.training.actions import BACKUP, Action
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.requests import ControlRequests
from modules.training.step.memory_guard import explain_single_sample, step_cannot_be_skipped


class DistributedTrainer(GenericTrainer):
    """One rank of a run. Every rank runs the same loop; ranks other than the first hold silent collaborators."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        report: Report,
        requests: ControlRequests,
        ranks: DistributedRanks,
        resume: Path | None = None,
    ) -> None:
        super().__init__(config, folder, report, requests, ranks, resume)
        self.process_group = ranks.process_group
        self.compression = Compression()
        self.is_warmed_up = False

    def wrap_model(self, family: Family) -> Weights:
        """DistributedDataParallel, which also gives every rank rank 0's weights."""
        weights = super().wrap_model(family)
        family.model = self.ddp = wrap_ddp(family.model, self.config, self.process_group, self.gradient_group)
        self.compression = register_compression_hook(self.ddp, self.config)
        weights.gradients_are_views = has_bucket_views(self.ddp)
        return weights

    def setup(self) -> None:
        """As on one device; buffers are compared with those that were loaded."""
        super().setup()
        self.buffers = BufferSync(self.components.weights.model, self.process_group, self.gradient_group)

    @property
    def gradient_group(self) -> ProcessGroup | None:
        """That of `gradient_ranks`; None if these are all."""
        return None

    def local_model(self) -> nn.Module:
        """Without DDP around it."""
        module: nn.Module = self.ddp.module
        return module

    @property
    def syncs_in_training(self) -> bool:
        """SyncBatchNorm's forward and backward are collectives, too; in validations and samples they are not."""
        return self.syncs_in_forward or self.config.sync_batch_norm

    @contextmanager
    def no_sync(self, last: bool) -> Iterator[None]:
        """Gradients stay on this rank until the last micro-batch of a step."""
        remedies = f"Set batch_size below {self.config.batch_size} (global_batch_size keeps the effective batch)"
        with ExitStack() as stack:
            if not last:
                stack.enter_context(self.ddp.no_sync())
            if self.config.sync_batch_norm:
                stack.enter_context(step_cannot_be_skipped(self.ranks.rank, "sync_batch_norm", remedies))
            yield

    def forward_backward(self, batch: Batch) -> None:
        """As on one device, after one warm-up."""
        if not self.is_warmed_up:
            with explain_single_sample(self.ranks.rank):
                self.warm_up_ddp(batch)
        # padding runs only because the other ranks wait for it: it must not move BatchNorm's averages
        # (SyncBatchNorm's averages move equally on all ranks)
        is_padding = not bool(batch.weights.any()) and not self.config.sync_batch_norm
        with explain_ddp_errors(self.components.weights.model), self.buffers.kept(when=is_padding):
            super().forward_backward(batch)

    def complete_gradient_sync(self) -> bool:
        """Let DDP reduce what is left of the step, so that the other ranks do not wait for it.

        Not with frozen groups: their gradients may be all that is left, and no rank would skip the step for those.
        """
        if any(group.is_frozen(self.progress) for group in self.components.groups):
            return False
        return complete_gradient_sync(self.ddp)

    def sync_buffers(self, grad_norm: Tensor) -> None:
        """Unless the config leaves each rank its own."""
        if self.config.broadcast_buffers:
            self.buffers.sync()

    def warm_up_ddp(self, batch: Batch) -> None:
        """One backward whose gradients are discarded.

        DDP sorts its buckets after its first backward, which changes the order in which three or more ranks add up.
        With that done before the first step, a resumed run adds up exactly as an uninterrupted one. The short
        collective timeouts start here.
        """
        precision, model = self.components.precision, self.components.weights.model
        samples = 1 if batch.remake is None else 2  # of data without a height and width, BatchNorm needs two
        sample = next(batch.to(self.ranks.device, precision.weights).split(samples))
        self.buffers.start()
        with self.dropout.of(sample.seeds, self.progress.step):
            with precision.autocast():
                losses = self.components.family.loss(sample)
            self.check_unused_parameters(losses)
            (losses.sum() * 0).backward()
        model.zero_grad(set_to_none=True)
        if self.components.weights.gradients_are_views:
            move_gradients_into_buckets(self.ddp)
        self.buffers.keep_changed()  # a forward moves BatchNorm's averages
        self.compression.reset(self.progress.step)
        self.is_warmed_up = True
        self.process_group.set_timeout(self.config.step_timeout_s)

    def check_unused_parameters(self, losses: Tensor) -> None:
        """Raises ConfigError, on every rank, if weights take no part in `losses` [B] and the config forbids that."""
        leaves = self.components.weights.leaf_tensors()
        if note := check_unused_parameters(leaves, losses, self.config, self.process_group.control):
            self.report.warning(note)

    def run_action(self, action: Action, *, training_continues: bool = False) -> None:
        """A backup does not hold what compression keeps on each rank, so a backup resets it for those who continue."""
        super().run_action(action, training_continues=training_continues)
        if action is BACKUP:
            self.compression.reset(self.progress.step)


class DataParallelTrainer(GenericTrainer):
    """One process that splits every micro-batch over several GPUs with torch's DataParallel."""

    def wrap_model(self, family: Family) -> Weights:
        """Replicas on all visible devices (the launch plan hides the others); without a GPU it only passes calls on."""
        weights = super().wrap_model(family)
        family.model = DataParallel(family.model)
        return weights
