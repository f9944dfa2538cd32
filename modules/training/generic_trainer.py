"""The training loop, in the order things happen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

from modules.checkpoint import TrainingState
from modules.data.batch import Batch
from modules.data.order import StepSamples
from modules.data.progress import Progress
from modules.training import chores, facts
from modules.training.assembly import assemble
from modules.training.calendar import Clocks, intervals, is_due
from modules.training.ledger import Ledger
from modules.training.model_setup import seed_draws
from modules.training.optimizers import set_learning_rate
from modules.training.resuming import check_unchanged
from modules.training.safeguards import GradientWatch, MicroBatchLimit, not_enough_memory, per_sample
from modules.training.schedules import learning_rate_factor
from modules.training.state import plan_for, position_of, restore
from modules.training.surroundings import LIMIT, Surroundings
from modules.training.validation import Patience
from modules.training.wishes import (
    CACHED,
    ENDINGS,
    FINISHED,
    NAMES,
    STOPPED_EARLY,
    Ending,
    StoppedBeforeTraining,
)

NOTHING_AGREED: Mapping[str, float] = dict.fromkeys(NAMES, 0.0)


class GenericTrainer(Surroundings):
    """One run from start to end. What differs on several processes is in its Surroundings."""

    def run(self) -> Ending:
        """Train from start to end; raises TandemError where that cannot be."""
        with self.session():
            self.start()
            try:
                ending = self.train()
            finally:
                self.parts.data.loader.close()
            self.end(ending)
        return ending

    def start(self) -> None:
        """Load the model, prepare the data, take over a backup, and tell what is going to happen."""
        config = self.config
        self.report.phase("loading")
        former = self.former_state()
        if former is not None and (told := check_unchanged(config, former)):
            self.report.warning(told)
        plan = plan_for(config, self.replica_count, former)
        self.parts = assemble(config, self.folder, plan, self.device, self, self.report, self.check_stop)
        if config.cache_only:
            raise StoppedBeforeTraining(CACHED)
        self.ledger = Ledger(self.device, self.replica_index, self.replica_count)
        self.patience = Patience(config.early_stopping_patience)
        self.progress = Progress(0, self.parts.data.order.epoch_size, plan.global_batch_size)
        if former is not None:
            self.take_over(former)
        self.previous = self.logged = self.progress
        self.log_clock = Clocks({"log": config.log_every})
        self.limit = MicroBatchLimit(config.batch_size, plan.global_batch_size, self.report)
        self.watch = GradientWatch(config.max_nonfinite_steps, partial(chores.newest_backup, self.parts), self.report)
        self.spoil = 1.0  # nan while the present step must not be applied
        self.done_at: dict[str, int] = {}
        self.announce()

    def train(self) -> Ending:
        """The loop: learn from batches, update at the last of each step, and see what is due between steps."""
        self.report.phase("training")
        self.training = True
        for batch in self.batches():
            self.learn(batch)
            if batch.last:
                self.update(batch.step_samples)
                if ending := self.between_steps():
                    return ending
        return FINISHED

    def end(self, ending: Ending) -> None:
        """Read the last figures; a finished run draws its samples and saves its model; every run leaves a backup."""
        while self.ledger.pending:
            self.exchange({}, newest=True)
        if ending in (FINISHED, STOPPED_EARLY):
            if self.parts.data.test:
                self.measure("test", self.parts.data.test)
            if self.config.sample_every:
                self.do("sample")
            self.do("save")
        self.do("backup")
        self.wishes.stopped()
        self.report.note(facts.farewell(ending, self.progress.step, str(self.folder.path)))
        self.report.finished(ending.reason, ending.exit_code)

    # Within a step

    def batches(self) -> Iterator[Batch]:
        """Micro-batches in the global order from the present position on, epoch after epoch."""
        while self.progress.step < self.parts.total_steps:
            stream = self.parts.data.loader.epoch(self.progress.epoch, self.progress.step_in_epoch)
            while True:
                began = time.perf_counter()
                batch = next(stream, None)
                self.ledger.add_wait(time.perf_counter() - began)
                if batch is None:
                    break
                yield batch

    def learn(self, batch: Batch) -> None:
        """Add the gradients of a micro-batch, in pieces that have turned out to fit into memory."""
        for piece in batch.to(self.device, self.parts.precision.weights).split(self.limit.samples):
            if self.add_gradients(piece) or not piece.last:
                continue
            # the others wait in the reduction: take part with one sample, spoilt, so that all pass over this step
            if not self.add_gradients(replace(next(piece.split(1)), last=True)):
                raise not_enough_memory()  # leaving is what ends their waiting

    def add_gradients(self, batch: Batch) -> bool:
        """Forward and backward; False where the memory was not enough and the step is therefore spoilt."""
        seed_draws(int(batch.seeds[0]))  # dropout inside the model, too, is a function of the position
        reducing = False
        try:
            with self.accumulate(batch.last):
                with self.parts.precision.autocast():
                    losses = per_sample(self.parts.family.loss(batch), len(batch))
                part = (losses * batch.weights).sum() / batch.step_weight
                reducing = batch.last and self.replica_count > 1
                if batch.last:
                    self.ledger.before_reduction()
                self.parts.precision.scaler.scale(part * (self.replica_count * self.spoil)).backward()
        except torch.OutOfMemoryError:
            if reducing:
                raise  # part of the gradients may be with the other ranks already
            self.spoil = math.nan
            return False
        self.ledger.add_loss(part, len(batch))
        return True

    def update(self, samples: int) -> None:
        """One optimizer step with the gradients of `samples` samples."""
        parts = self.parts
        factor = learning_rate_factor(self.progress.step, parts.total_steps, self.config)
        learning_rate = parts.plan.learning_rate * factor
        set_learning_rate(parts.step.optimizer, learning_rate, [group.factor for group in parts.groups])
        norm = parts.step.apply([group.rests(self.progress) for group in parts.groups])
        self.previous, self.progress = self.progress, self.progress.after(samples)
        if parts.ema is not None:
            parts.ema.update(self.progress.step)
        self.ledger.close(self.progress, learning_rate, norm)
        if math.isnan(self.spoil):
            self.limit.halve()
        self.spoil = 1.0

    # Between steps

    def between_steps(self) -> Ending | None:
        """Do what is due by the calendar or was agreed to be wished for, and say whether the run ends here."""
        agreed = self.exchange(self.wishes.collect()) if self.ledger.due else NOTHING_AGREED
        due = {n for n, interval in intervals(self.config).items() if is_due(interval, self.previous, self.progress)}
        due.update(name for name in ("validate", "sample", "backup", "save") if agreed[name])
        if due:
            self.attend_to(due)
        for name, ending in ENDINGS.items():
            if agreed[name]:
                return ending
        if self.progress.step >= self.parts.total_steps:
            return FINISHED
        return STOPPED_EARLY if self.patience.exhausted else None

    def exchange(self, wishes: Mapping[str, float], *, newest: bool = False) -> dict[str, float]:
        """Tell this rank's wishes and figures, and take in what all ranks told the time before."""
        told = {**wishes, f"{LIMIT}/{self.replica_index}": self.limit.samples}
        agreed, records = self.ledger.exchange(self.agree, told, newest=newest)
        for record in records:
            read = replace(self.progress, samples_seen=record.samples_seen)
            shown = is_due(self.config.log_every, self.logged, read) or bool(self.log_clock.rung())
            self.logged = read
            self.report.step(record, shown=shown)
            self.watch.look(record)
        if records:
            self.report.ranks(facts.rank_figures(agreed, self.roster), self.readings.latest, len(records))
            self.limit.follow(int(min(agreed[f"{LIMIT}/{rank}"] for rank in range(self.replica_count))))
        return agreed

    def attend_to(self, due: set[str]) -> None:
        """Validate, draw samples, back up, save: whatever is due, in this order. A full disk does not end the run."""
        if "validate" in due and self.parts.data.validation:
            self.patience.add(self.measure("validation", self.parts.data.validation))
        for name in chores.CHORES:
            if name in due:
                self.do(name, surviving=True)
        self.report.phase("training")
        self.ledger.restart_clock()

    def measure(self, name: str, steps: list[StepSamples]) -> float:
        """The mean loss over pictures that are not learned from, on all ranks; all see the same, and judge it alike."""
        self.report.phase(name)
        total, weight = chores.validate(self.parts, steps)
        loss = self.total(total) / self.total(weight)
        self.report.validation(name, loss, self.progress.step)
        return loss

    def do(self, name: str, *, surviving: bool = False) -> None:
        """Rank 0 does a chore, once a step, while the others wait. Raises OSError (full disk) unless `surviving`."""
        if self.done_at.get(name) == self.progress.step:
            return
        self.done_at[name] = self.progress.step
        position = position_of(self.progress, self.parts.plan, self.replica_count, self.patience)
        deeds = self.computed(self.chore(name, position))

        def work() -> None:
            try:
                with closing(deeds):
                    for deed in deeds:
                        deed()
            except OSError as error:
                if not surviving:
                    raise
                self.report.warning(
                    f"The {name} at step {position.step} could not be written: {error}. Training goes on."
                )

        self.together(name, work)

    # Before the first step

    def take_over(self, state: TrainingState) -> None:
        """Go on where a backup stands."""
        parts, position = self.parts, state.position
        restore(state, parts.weights, parts.ema, parts.step.optimizer, parts.precision.scaler, self.config)
        self.progress = replace(self.progress, samples_seen=position.samples_seen)
        self.patience.best = position.best_validation_loss
        self.patience.without_improvement = position.validations_without_improvement
        if position.epoch_size != self.progress.epoch_size:
            self.report.warning(
                f"The pictures have changed since the backup: an epoch had {position.epoch_size} samples and now has "
                f"{self.progress.epoch_size}. The run goes on, but not exactly as it would have."
            )
        ranks = f"{position.world_size} rank{'s' * (position.world_size != 1)}"
        self.report.note(f"Resuming at step {self.progress.step} (the backup was made by {ranks}).")

    def announce(self) -> None:
        """Tell the terminal and the window what is about to be trained."""
        for line in facts.opening(self.parts, self.replica_count):
            self.report.note(line)
        if self.progress.step >= self.parts.total_steps:
            self.report.note("All steps of this config are done already; raise epochs or max_steps to train further.")
        self.report.started(
            facts.started_facts(self.parts, self.roster, self.backend),
            first_step=self.progress.step,
            total_steps=self.parts.total_steps,
            total_samples=facts.total_samples(self.parts),
        )
