"""What one rank trains with, each part made by the set-up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import torch

from modules.config import TrainConfig
from modules.config.schedules import Pace, learning_rate_factor
from modules.distributed import Weights
from modules.families._family import Family, SampleRequest
from modules.run import RunFolder
from modules.training.backup.writer import BackupWriter
from modules.training.data.dataset import Dataset, run_steps
from modules.training.data.rescan import Rescan
from modules.training.device.precision import Precision
from modules.training.methods.submodules import SubmoduleGroup
from modules.training.optim.ema import Ema
from modules.training.optim.fused_backward import FusedBackward
from modules.training.optim.optimizers import GuardedStep, set_learning_rate
from modules.training.optim.own_schedule import OwnSchedule
from modules.training.optim.schedule_free import ScheduleFreeWeights
from modules.training.state.plan import Plan


@dataclass
class Components:
    """What one rank trains with; only `data`, and what follows from it, changes while it trains.

    `weights.model` is the bare module; `family.model` may be a wrapper around it.
    """

    config: TrainConfig
    folder: RunFolder
    plan: Plan
    device: torch.device
    precision: Precision
    family: Family
    weights: Weights
    groups: list[SubmoduleGroup]  # of the optimizer, in its order
    data: Dataset
    guarded_step: GuardedStep
    schedule: OwnSchedule | None  # of the learning rate, if it is none of Tandem's
    fused_backward: FusedBackward | None
    ema: Ema | None
    schedule_free: ScheduleFreeWeights | None  # of an optimizer that averages the weights
    backups: BackupWriter
    sample_requests: list[SampleRequest]
    rescan: Rescan | None = None
    pace: Pace | None = None  # through the schedule; None: one step after the other
    started_at: float = field(default_factory=time.time)  # seconds since 1970

    @cached_property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return run_steps(self.data.order, self.config)

    def go_on_with(self, data: Dataset) -> None:
        """From now on, train on other data."""
        self.data = data
        vars(self).pop("total_steps", None)

    def close(self) -> None:
        """End the threads and processes that read data."""
        if self.rescan is not None:
            self.rescan.close()
        self.data.close()

    @property
    def total_samples(self) -> int:
        """Samples of the whole run."""
        return self.data.order.progress(0).samples_until(self.total_steps)

    def set_learning_rate(self, step: int) -> float:
        """Set that of the step after `step` steps for every group; returns the run's."""
        if self.schedule is not None:
            return self.plan.learning_rate * self.schedule.apply(step)
        learning_rate = self.plan.learning_rate * learning_rate_factor(step, self.total_steps, self.config, self.pace)
        factors = [group.learning_rate_factor for group in self.groups]
        set_learning_rate(self.guarded_step.optimizer, learning_rate, factors)
        return learning_rate
