"""Building everything that a run needs before its first step, in the order of dependence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from modules.checkpoint import Backups
from modules.config import TrainConfig
from modules.distributed import Weights
from modules.families.family import Family, SampleRequest
from modules.monitoring import Report
from modules.run import RunFolder
from modules.training.base_model import fetch_base_model
from modules.training.dataset import Dataset, Replicas, prepare_dataset
from modules.training.ema import Ema
from modules.training.model_setup import check_available, load_family, prepare_model
from modules.training.optimizers import GuardedStep, build_optimizer
from modules.training.plan import Plan
from modules.training.precision import Precision
from modules.training.resuming import check_base
from modules.training.sampling import sample_requests
from modules.training.trained_parts import PartGroup, part_groups


class Placing(Replicas, Protocol):
    """What building the parts needs of a trainer."""

    scaler_class: type[torch.amp.GradScaler]

    def place(self, family: Family) -> Weights:
        """Bring `family.model` into the form in which it is trained."""


@dataclass(frozen=True)
class Parts:
    """What one rank trains with. `weights.model` is the bare module; `family.model` may be a wrapper around it."""

    config: TrainConfig
    folder: RunFolder
    plan: Plan
    device: torch.device
    precision: Precision
    family: Family
    weights: Weights
    groups: list[PartGroup]  # of the optimizer, in its order
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
    replicas: Placing,
    report: Report,
    check_stop: Callable[[], None],
) -> Parts:
    """All parts, ready for a backup to be restored into. Raises TandemError where config or data cannot be used."""
    precision = Precision(config.precision, device, replicas.scaler_class)
    fetch_base_model(check_available(config), config, replicas, report, check_stop)
    family = load_family(config)
    plan = replace(plan, beginning=check_base(family, config, plan.beginning))
    requests = sample_requests(config, family.size_step)
    for remark in family.remarks([text for each in requests for text in (each.prompt, each.negative_prompt)]):
        report.warning(f"Samples: {remark}")
    prepare_model(family, config, precision)
    family.device = device
    data = prepare_dataset(
        config, family, plan.global_batch_size, replicas, report, folder.log_dir / "problems.txt", check_stop
    )
    family.rest()
    weights = replicas.place(family)
    groups = part_groups(family, config, weights.own)
    optimizer = build_optimizer([{"params": [weights.own[name] for name in group.weights]} for group in groups], config)
    return Parts(
        config=config,
        folder=folder,
        plan=plan,
        device=device,
        precision=precision,
        family=family,
        weights=weights,
        groups=groups,
        data=data,
        step=GuardedStep(optimizer, weights, precision.scaler, config.max_grad_norm),
        ema=Ema(weights.own, config.ema_decay) if config.ema else None,
        backups=Backups(folder.backup_dir, config.backups_kept),
        requests=requests,
    )
