"""The same run on several machines that average their weights only now and then (DiLoCo)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from modules.config import TrainingError
from modules.data.loading.shares import share_counts
from modules.distributed import LocalUpdates, Machines, Weights
from modules.families._family import Family
from modules.training.actions import Action
from modules.training.loop.distributed_trainer import DistributedTrainer
from modules.training.optim.optimizers import loss_factor
from modules.training.state.requests import Outcome


class LocalUpdatesTrainer(DistributedTrainer):
    """One rank of such a run: gradients are averaged inside its machine, weights between machines every `local_steps`.

    Whatever leaves the training (samples, validations, backups, models) is of common weights: before an action the
    machines average theirs, without an outer step. The order of samples is that of any run.
    """

    skipped_by = "the machine that had it"
    norms_differ = True

    def setup(self) -> None:
        """The machines' groups come first: the model is wrapped with them."""
        self.machines = Machines(self.process_group)
        self.own_ranks = self.machines.ranks[self.machines.index]
        self.steps = 0  # since the machines have agreed on their weights
        self.samples = torch.zeros((), device=self.ranks.device)  # those of this machine that it has applied since then
        self.left_out = [0] * len(self.machines.ranks)  # how many times in a row each machine has not counted
        self.step_samples = 1  # of this machine in the current step
        super().setup()
        config = self.config
        self.report.note(
            f"Local updates: {len(self.machines.ranks)} machines train by themselves and average their weights every "
            f"{config.local_steps} steps (outer learning rate {config.outer_learning_rate:g}, outer momentum "
            f"{config.outer_momentum:g}, sent in {'fp32' if config.outer_compression == 'none' else ''}"
            f"{config.outer_compression.replace('none', '')})."
        )

    def wrap_model(self, family: Family) -> Weights:
        """With the state of the outer steps beside the weights."""
        weights = super().wrap_model(family)
        weights.outer = LocalUpdates(weights.local, self.config, self.machines)
        return weights

    @property
    def gradient_ranks(self) -> list[int]:
        """Those of this machine."""
        return self.own_ranks

    @property
    def gradient_group(self) -> ProcessGroup:
        """As they."""
        return self.machines.inside

    def loss_scale(self, step_samples: int) -> float:
        """The mean is over the machine's samples, not over all of the step's."""
        return loss_factor(len(self.own_ranks)) * step_samples / max(1, self.samples_here(step_samples))

    def samples_here(self, step_samples: int) -> int:
        """How many of the current step's samples this machine has."""
        table = self.components.data.shares.divide(self.progress.step)
        counts = share_counts(step_samples, self.ranks.world_size, table)
        return sum(counts[rank] for rank in self.own_ranks)

    def optimizer_step(self, samples: int) -> None:
        """As anywhere; a machine without a sample in the step leaves its weights as they are."""
        self.step_samples = self.samples_here(samples)
        super().optimizer_step(samples)

    def frozen_groups(self) -> list[bool]:
        """All of them in a step without a sample on this machine."""
        return [is_frozen or not self.step_samples for is_frozen in super().frozen_groups()]

    def update_ema(self) -> None:
        """The average follows the common weights, see `agree`: so it is the same everywhere."""

    def sync_buffers(self, grad_norm: Tensor) -> None:
        """Inside the machine; after `local_steps` of the run, all that is trained between machines."""
        super().sync_buffers(grad_norm)
        self.steps += 1
        self.samples += self.step_samples * grad_norm.isfinite()
        assert self.config.local_steps is not None, "see the worker"
        if self.progress.step % self.config.local_steps == 0:
            self.agree(outer=True)

    def agree(self, *, outer: bool) -> None:
        """Give all machines the same weights, unless they have them; `outer`: by an outer step."""
        if not self.steps:
            return
        components = self.components
        assert components.weights.outer is not None, "see wrap_model"
        scaler = components.precision.scaler
        buffers = self.buffers.changing() if self.config.broadcast_buffers else []
        agreement = components.weights.outer.agree(
            self.progress.step,
            int(self.samples),
            scaler.get_scale(),
            buffers,
            outer=outer,
            frozen=set(self.frozen_since_outer_step()) if outer else (),
            state=components.guarded_step.state_tensors(),
        )
        self.buffers.start()
        if scaler.is_enabled():
            scaler.update(agreement.loss_scale)  # a backup holds one for all
        if components.ema is not None:
            components.ema.update(self.progress.step, self.steps)
        self.follow_left_out(agreement.left_out)
        self.steps = 0
        self.samples.zero_()

    def frozen_since_outer_step(self) -> Iterator[str]:
        """The weights that `stop_after` has frozen for all steps since the last outer one; a function of progress."""
        assert self.config.local_steps is not None, "see the worker"
        before = self.progress.samples_until(self.progress.step - self.config.local_steps)
        start = replace(self.progress, samples_seen=before)
        for group in self.components.groups:
            yield from group.weights if group.is_frozen(start) else ()

    def follow_left_out(self, machines: tuple[int, ...]) -> None:
        """Report the `machines` that did not count. They go on from the weights of the others without their optimizer's
        state, which is or has made what is not finite. Raises TrainingError after too many times in a row."""
        self.left_out = [count + 1 if index in machines else 0 for index, count in enumerate(self.left_out)]
        limit = self.config.max_nonfinite_steps
        for index in machines:
            name, count = self.machines.names[index], self.left_out[index]
            self.report.warning(
                f"Step {self.progress.step}: the weights, buffers or optimizer state on {name} (machine {index}) were "
                f"not finite, so that its part of the last {self.steps} steps does not count ({count} in a row); its "
                "optimizer starts anew."
            )
            if count >= limit:
                raise TrainingError(
                    f"The weights, buffers or optimizer state on {name} (machine {index}) were not finite {count} "
                    f"times in a row (the last was step {self.progress.step}).",
                    "Try a lower learning_rate, then --resume latest; if it is always this machine, test its GPUs.",
                )
        if self.machines.index in machines:
            self.components.guarded_step.clear_state()

    def run_action(self, action: Action, *, training_continues: bool = False) -> None:
        """With common weights."""
        self.agree(outer=False)
        super().run_action(action, training_continues=training_continues)

    def finish(self, outcome: Outcome) -> None:
        """With common weights."""
        self.agree(outer=False)
        super().finish(outcome)
