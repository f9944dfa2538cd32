"""Building everything that a run needs before its first step, in the order of dependence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from modules.checkpoint import Backups
from modules.config import TrainConfig
from modules.families.family import Family, SampleRequest
from modules.monitoring import Report
from modules.run import RunFolder
from modules.training.dataset import Dataset, Replicas, prepare_dataset
from modules.training.ema import Ema
from modules.training.model_setup import load_family, prepare_model, trainable
from modules.training.optimizers import GuardedStep, build_optimizer
from modules.training.plan import Plan
from modules.training.precision import Precision
from modules.training.sampling import sample_requests


@dataclass(frozen=True)
class Parts:
    """What one rank trains with. `model` is the bare module; `family.model` becomes its wrapped form."""

    config: TrainConfig
    folder: RunFolder
    plan: Plan
    device: torch.device
    precision: Precision
    family: Family
    model: nn.Module
    data: Dataset
    step: GuardedStep
    ema: Ema | None
    backups: Backups
    requests: list[SampleRequest]

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run: `max_steps` or all epochs, whichever is less."""
        by_epochs = self.config.epochs * self.data.order.steps_per_epoch
        return by_epochs if self.config.max_steps is None else min(by_epochs, self.config.max_steps)


def assemble(
    config: TrainConfig,
    folder: RunFolder,
    plan: Plan,
    device: torch.device,
    replicas: Replicas,
    report: Report,
    check_stop: Callable[[], None],
) -> Parts:
    """All parts, ready for a backup to be restored into. Raises TandemError where config or data cannot be used."""
    precision = Precision(config.precision, device)
    family = load_family(config)
    requests = sample_requests(config, family.size_step)
    model = prepare_model(family, config, precision, device)
    data = prepare_dataset(
        config, family, plan.global_batch_size, replicas, report, folder.log_dir / "problems.txt", check_stop
    )
    weights = trainable(model)
    return Parts(
        config=config,
        folder=folder,
        plan=plan,
        device=device,
        precision=precision,
        family=family,
        model=model,
        data=data,
        step=GuardedStep(build_optimizer(weights.values(), config), precision.scaler, config.max_grad_norm),
        ema=Ema(weights, config.ema_decay) if config.ema else None,
        backups=Backups(folder.backup_dir, config.backups_kept),
        requests=requests,
    )
