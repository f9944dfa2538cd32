"""A run from start to end, in the order things happen: set up, train, finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from modules.checkpoint import Backups, Position, Rotation
from modules.config import EQUAL, TrainConfig
from modules.config.schedules import changed_pace
from modules.data.batch import Batch
from modules.distributed import RankGroup, Weights
from modules.families._family import Family
from modules.monitoring import Report
from modules.run import RunFolder
from modules.run.folder.commands import REGROUP
from modules.training.actions import (
    ACTIONS,
    BACKUP,
    SAMPLE,
    SAVE,
    Action,
    ActionContext,
    ActionRunner,
    due_actions,
    evaluate,
    restore_best,
)
from modules.training.backup.checkpoint_sync import open_checkpoint
from modules.training.backup.writer import BackupWriter
from modules.training.data.dataset import RowSelection
from modules.training.loop import run_info
from modules.training.loop.load_checkpoint import load_checkpoint
from modules.training.loop.metric_sync import MetricSync
from modules.training.loop.setup import Parallelism, build_components, load_balancer, own_schedule
from modules.training.memory.model_setup import compile_model
from modules.training.memory.move_model import move_model
from modules.training.memory.probe import limit_to_memory, wants_probe
from modules.training.optim.optimizers import loss_factor
from modules.training.state.checkpoint_state import current_position, plan_for
from modules.training.state.early_stopping import EarlyStopping, UnknownMetric
from modules.training.state.requests import (
    CACHED,
    FINISHED,
    REGROUPED,
    STOP_REQUESTS,
    STOPPED_EARLY,
    ControlRequests,
    Outcome,
    StoppedBeforeTraining,
)
from modules.training.state.resume import check_unchanged
from modules.training.step.dropout import PerSampleDropout
from modules.training.step.histograms import WeightHistograms
from modules.training.step.memory_guard import MemoryGuard
from modules.training.step.metrics import StepMetrics
from modules.training.step.model_flops import ModelFlops
from modules.training.step.safeguards import check_per_sample


class GenericTrainer:
    """One run from start to end. Subclasses change how the model is wrapped and its gradients are synchronised."""

    scaler_class: type[torch.amp.GradScaler] = torch.amp.GradScaler
    syncs_in_forward = False  # whether every forward is a collective, also that of samples and validations
    skipped_by = "every rank"  # a step with a gradient that is not finite
    norms_differ = False  # whether gradient norms do, from machine to machine

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        report: Report,
        requests: ControlRequests,
        ranks: RankGroup,
        resume: Path | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.report = report
        self.requests = requests
        self.ranks = ranks
        self.resume = resume
        self.has_started = False  # the first step
        self.select_rows: RowSelection | None = None  # the images to encode; without it all
        ranks.on_wait = self.check_stop

    def run(self) -> Outcome:
        """Set up, train and finish. Raises TandemError if that is impossible."""
        self.setup()
        try:
            with self.components.backups.completing(alone=self.ranks.world_size == 1):
                outcome = self.train()
                self.finish(outcome)
        finally:
            self.components.close()
        return outcome

    # Before the first step

    def setup(self) -> None:
        """Load the model, prepare the data, restore a backup, and report what is about to be trained."""
        config, ranks = self.config, self.ranks
        self.report.phase("loading")
        with open_checkpoint(self.resume, self.folder, ranks) as checkpoint:
            if checkpoint is not None and (changes := check_unchanged(config, checkpoint)):
                self.report.warning(changes)
            # torchrun may have started another number of machines
            there = config.model_copy(update={"num_nodes": ranks.machines})
            plan = plan_for(there, ranks.world_size, checkpoint)
            parallelism = Parallelism(
                self.wrap_model,
                self.scaler_class,
                self.syncs_in_training,
                backup_writer=self.backup_writer,
                gradient_ranks=len(self.gradient_ranks),
            )
            self.components = build_components(
                config, self.folder, plan, ranks, parallelism, self.report, self.check_stop, self.select_rows
            )
            if config.cache_only:
                raise StoppedBeforeTraining(CACHED)
            model = self.components.family.model
            self.dropout = PerSampleDropout(model, ranks.device, self.report, compiled=config.compile)
            can_count = not config.compile and not self.syncs_in_training
            self.flops = ModelFlops.of(self.components.precision, can_count=can_count)
            self.metrics = StepMetrics(
                ranks.device, ranks.rank, ranks.world_size, self.flops, norms_differ=self.norms_differ
            )
            self.histograms = WeightHistograms(config.histograms_every, self.components.weights, self.report)
            self.early_stopping = EarlyStopping.of(config)
            self.memory = MemoryGuard(
                config.batch_size,
                plan.global_batch_size,
                ranks.rank,
                ranks.world_size,
                self.report,
                together=config.balance == EQUAL,
                skipped_by=self.skipped_by,
            )
            self.probe_is_due = wants_probe(config, ranks.device) and not self.syncs_in_training
            self.actions = ActionRunner(computed_by_all=self.syncs_in_forward)
            self.best_position: Position | None = None  # of the weights in the model, once the best ones are restored
            self.progress = self.components.data.order.progress(0)
            if checkpoint is not None:
                self.progress = load_checkpoint(checkpoint, self.components, self.early_stopping, self.report)
            self.previous = self.progress
            balancer = load_balancer(self.components, ranks, self.report)
            self.sync = MetricSync(
                self.components,
                self.metrics,
                self.memory,
                balancer,
                ranks,
                self.report,
                self.progress,
                self.requests,
                self.skipped_by,
            )
        run_info.announce(self.components, self.progress, ranks, self.report)

    def check_stop(self) -> None:
        """Before the first step: raises StoppedBeforeTraining on every rank as soon as any was asked to stop."""
        if not self.has_started:  # from then on all ranks stop between two steps
            self.requests.check_stop(self.ranks)

    # The loop

    def train(self) -> Outcome:
        """The loop: gradients of each micro-batch, an optimizer step after the last one, then what is due."""
        self.report.phase("training")
        self.has_started = True
        if self.early_stopping.should_stop:
            self.report.note("Early stopping has ended this run; raise early_stopping_patience to train further.")
            return STOPPED_EARLY
        for batch in self.micro_batches():
            self.forward_backward(batch)
            if batch.is_last_of_step:
                self.optimizer_step(batch.step_samples)
                if outcome := self.after_step():
                    return outcome
        return FINISHED

    def micro_batches(self) -> Iterator[Batch]:
        """This rank's micro-batches in the global order, from the current position on, epoch after epoch."""
        while self.progress.step < self.components.total_steps:
            left = self.components.total_steps - self.progress.step
            data = self.components.data
            loader = data.loader.steps(self.progress.epoch, self.progress.step_in_epoch, left)
            while data is self.components.data:
                self.metrics.begin("data")
                batch = next(loader, None)
                self.metrics.begin("forward")
                if batch is None:
                    break
                yield batch

    def forward_backward(self, batch: Batch) -> None:
        """Add the gradients of a micro-batch, in pieces that fit into memory."""
        if self.probe_is_due:
            self.probe_is_due = False
            limit_to_memory(self.components, self.local_model(), self.dropout, self.ranks, self.memory, self.report)
        self.components.data.unreadable.add(batch.problems)
        batch = batch.to(self.ranks.device, self.components.precision.weights)
        self.memory.add_in_pieces(batch, self.add_gradients, self.complete_gradient_sync)

    def add_gradients(self, batch: Batch) -> None:
        """Forward and backward of one piece; the last one of a step reduces the gradients over the ranks."""
        family, precision = self.components.family, self.components.precision
        self.metrics.begin("forward")
        with self.dropout.of(batch.seeds, self.progress.step), self.no_sync(batch.is_last_of_step):
            with precision.autocast(), self.flops.counting(len(batch)):
                losses = check_per_sample(family.loss(batch), len(batch))
            # this rank's part of the mean over all samples of the step, whichever rank they are on
            loss = (losses * batch.weights).sum() / batch.step_samples
            factor = self.loss_scale(batch.step_samples) * self.memory.loss_factor
            scaled = precision.scaler.scale(loss * factor)
            self.metrics.begin("backward")
            if batch.is_last_of_step:
                self.metrics.begin_gradient_sync(scaled)
                self.memory.enter_gradient_sync()
            self.backward(scaled, last=batch.is_last_of_step)
        self.metrics.add_loss(loss, len(batch))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of `loss` []; with fused_backward the `last` piece of a step applies them as well."""
        if last and (fused := self.components.fused_backward) is not None:
            self.components.set_learning_rate(self.progress.step)
            fused.step(loss, self.frozen_groups(), self.progress.step)
        else:
            loss.backward()

    def optimizer_step(self, samples: int) -> None:
        """Apply the gradients of a step of `samples` samples, unless they are not finite on any rank."""
        components = self.components
        self.metrics.begin("optimizer")
        learning_rate = components.set_learning_rate(self.progress.step)
        after = self.progress.after(samples)
        if components.fused_backward is not None:
            grad_norm = components.fused_backward.finish()
        else:
            on_gradients = partial(self.histograms.report_if_due, self.progress, after)
            grad_norm = components.guarded_step.apply(self.frozen_groups(), on_gradients, self.progress.step)
        self.previous, self.progress = self.progress, after
        self.update_ema()
        self.metrics.begin("sync")
        self.sync_buffers(grad_norm)
        self.metrics.end_step(self.progress, learning_rate, grad_norm, out_of_memory=self.memory.skip_step)
        self.memory.end_step()

    def frozen_groups(self) -> list[bool]:
        """Which of the optimizer's groups the coming step leaves as they are."""
        return [group.is_frozen(self.progress) for group in self.components.groups]

    # Between steps

    def after_step(self) -> Outcome | None:
        """Sync with the other ranks now and then, run the actions that are due, and say whether the run ends here."""
        requested = self.sync.exchange() if self.metrics.sync_is_due else {}
        unreadable = self.components.data.unreadable
        if unreadable.too_many:
            requested = {**requested, BACKUP.name: 1.0}
        due = self.due_actions(requested)
        if BACKUP in due:  # no event of its steps may be missing after a failure
            requested = self.sync.settle(requested)
            due = self.due_actions(requested)
        self.run_actions(due)
        can_regroup = BACKUP in due and requested.get(REGROUP) and not self.has_failed(self.components.backups.wait)
        if due:
            self.report.phase("training")
            self.metrics.restart_clock()
        unreadable.check()
        for name, outcome in STOP_REQUESTS.items():
            if requested.get(name):
                return outcome
        if self.progress.step >= self.components.total_steps:
            return FINISHED
        if self.early_stopping.should_stop:
            return STOPPED_EARLY
        if can_regroup:
            return REGROUPED
        self.follow_files()
        return None

    def follow_files(self) -> None:
        """With `rescan`: at the end of an epoch, go on with the images that lie there now."""
        components, report = self.components, self.report
        if components.rescan is None:
            return
        if self.progress.epoch == self.previous.epoch:
            components.rescan.follow(components.data, self.progress, components.total_steps)
            return
        components.data.unreadable.exchange()
        given = components.family, components.guarded_step, components.plan, components.groups
        schedule = partial(own_schedule, self.config, *given)
        taken, before = components.rescan.take(components.data, self.progress, schedule), components.total_steps
        if taken is not None:
            data, components.schedule = taken
            components.go_on_with(data)
            self.progress = self.previous = data.order.progress(self.progress.samples_seen)
            step, now = self.progress.step, components.total_steps
            components.pace = changed_pace(components.pace, step, before, now)
            if text := run_info.length_change(components, before, step):
                report.warning(text)
            report.length(now, components.total_samples, data.order.steps_per_epoch)
        report.phase("training")
        self.metrics.restart_clock()

    def due_actions(self, requested: Mapping[str, float]) -> list[Action]:
        """The actions to run after this step, the same on all ranks."""
        return due_actions(ACTIONS, self.config, requested, self.previous, self.progress)

    def run_actions(self, due: Iterable[Action]) -> None:
        """Run what is due; if that ends the run with an error of the config, after a backup."""
        for action in due:
            try:
                self.run_action(action, training_continues=True)
            except UnknownMetric:  # on every rank
                self.sync.settle({})
                self.run_action(BACKUP, training_continues=True)
                raise

    def run_action(self, action: Action, *, training_continues: bool = False) -> None:
        """Run an action, at most once per step. Raises OSError if a file cannot be written, unless training goes on."""
        self.actions.run(action, self.action_context(training_continues=training_continues), self.progress.step)

    def action_context(self, *, training_continues: bool = False) -> ActionContext:
        """What actions work with, at the position of the model's weights."""
        position = self.best_position or current_position(
            self.progress, self.components, self.ranks.world_size, self.early_stopping
        )
        return ActionContext(
            self.components,
            position,
            self.ranks,
            self.report,
            self.early_stopping,
            lambda: self.requests.stop_is_wanted,
            training_continues,
            self.requests.take_custom_samples,
        )

    # After the last step

    def finish(self, outcome: Outcome) -> None:
        """Read the last metrics. A complete run is tested, sampled and saved; whatever was trained leaves a backup."""
        self.previous = self.progress  # nothing but what was requested since is due
        self.run_actions(self.due_actions(self.sync.finish()))
        if outcome.is_complete:
            if self.config.restore_best:
                self.restore_best_weights()
            if test := self.components.data.test:
                self.report.phase("test")
                evaluate(self.action_context(), "test", test)
            if self.config.sample_every:
                self.run_action(SAMPLE)
            self.run_action(SAVE)
        if self.best_position is None:
            self.complete_backups()
            self.run_action(BACKUP)
        self.components.data.unreadable.exchange()
        if outcome == REGROUPED:
            self.requests.clear_regroup()
            self.report.phase(REGROUPED.reason)  # which tells the supervisor
            return
        self.requests.clear_stop()
        done = {BACKUP.name, *([SAVE.name] if outcome.is_complete else [])}
        if late := ", ".join(name for name in self.requests.take_late() if name not in done):
            self.report.warning(f"Asked for after the last step, and not done any more: {late}.")
        self.report.note(run_info.final_message(outcome, self.progress.step, self.folder))
        self.report.finished(outcome.reason, outcome.exit_code)

    def restore_best_weights(self) -> None:
        """After a backup of the last weights, bring back those of the best validation, for all that follows."""
        self.complete_backups()
        self.run_action(BACKUP)
        self.components, self.best_position = restore_best(
            self.components, self.early_stopping, self.ranks, self.report
        )
        if self.best_position is not None:
            self.actions.forget()

    def complete_backups(self) -> None:
        """Wait for the backups under way; if that of the last step has failed, all ranks may try it again."""
        if self.has_failed(self.components.backups.complete):
            self.actions.forget(BACKUP)

    def has_failed(self, wait: Callable[[], int | None]) -> bool:
        """Whether the backup of the last step has failed, the same on all ranks; `wait` is rank 0's for it."""
        failed_step = ""

        def wait_on_rank0() -> None:
            nonlocal failed_step
            self.report.phase("saving")
            failed_step = str(wait() or "")

        self.ranks.run_on_rank0("backup", wait_on_rank0)
        return self.ranks.gather("failed backup", failed_step)[0] == str(self.progress.step)

    # What other ways to train override

    @property
    def syncs_in_training(self) -> bool:
        """Whether every forward of a training step is a collective, which all ranks must run equally often."""
        return self.syncs_in_forward

    @property
    def gradient_ranks(self) -> Sequence[int]:
        """The ranks over which gradients are averaged in every step."""
        return range(self.ranks.world_size)

    def loss_scale(self, step_samples: int) -> float:
        """By what this rank multiplies its part of the mean loss of a step of `step_samples`, see `loss_factor`."""
        return loss_factor(len(self.gradient_ranks))

    def update_ema(self) -> None:
        """At the end of each step: let the averaged weights follow."""
        if self.components.ema is not None:
            self.components.ema.update(self.progress.step)

    def wrap_model(self, family: Family) -> Weights:
        """Bring `family.model` into the form in which it is trained; returns the weights as this rank holds them."""
        move_model(family, self.config, self.ranks.device)
        model = family.model
        family.model = compile_model(model) if self.config.compile else model
        return Weights(model)

    def backup_writer(self, rotation: Rotation) -> BackupWriter:
        """What writes the backups of this run; called once, by all ranks."""
        backups = Backups(self.folder.backup_dir, rotation.keep, rotation.every, rotation.days)
        return BackupWriter(backups, self.report, merges=self.config.backup_every.unit == "minutes")

    def local_model(self) -> nn.Module:
        """The network whose forward and backward no other rank takes part in."""
        return self.components.family.model

    def no_sync(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward: gradients stay on this rank until the `last` piece of a step."""
        return nullcontext()

    def complete_gradient_sync(self) -> bool:
        """After an error in the backward of the last piece: end the step with NaN gradients on all ranks, if it can."""
        return False

    def sync_buffers(self, grad_norm: Tensor) -> None:
        """At the end of each step with a gradient of norm `grad_norm` []: give all ranks the same buffers, such as
        BatchNorm's running averages."""
