"""Building everything that a run needs before its first step, in dependency order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from modules.checkpoint import Rotation
from modules.config import TrainConfig, total_steps
from modules.config.schedules import learning_rate_factor
from modules.distributed import RankGroup, Weights
from modules.families._family import Family, SampleRequest
from modules.monitoring import Report
from modules.run import RunFolder
from modules.training.backup_writer import BackupWriter
from modules.training.dataset import Dataset, RowSelection, check_validation, prepare_dataset, resolve_data
from modules.training.ema import Ema, decay_for_batch
from modules.training.fetch_base_model import fetch_base_model
from modules.training.fused_backward import FusedBackward
from modules.training.memory_table.report import check_memory
from modules.training.model_setup import check_available, load_family, prepare_model
from modules.training.optimizers import GuardedStep, build_optimizer, set_learning_rate
from modules.training.own_data import prepare_own_data
from modules.training.parameter_groups import parameter_groups, without_decay
from modules.training.plan import Plan
from modules.training.precision import Precision, can_use_tf32
from modules.training.resume import check_initial_model
from modules.training.sample_requests import sample_requests
from modules.training.schedule_free import ScheduleFreeWeights
from modules.training.single_steps import SingleSteps, optimizer_weights
from modules.training.submodules import SubmoduleGroup, submodule_groups


@dataclass(frozen=True)
class Components:
    """What one rank trains with. `weights.model` is the bare module; `family.model` may be a wrapper around it."""

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
    fused_backward: FusedBackward | None
    ema: Ema | None
    schedule_free: ScheduleFreeWeights | None  # of an optimizer that averages the weights
    backups: BackupWriter
    sample_requests: list[SampleRequest]
    started_at: float = field(default_factory=time.time)  # seconds since 1970

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return total_steps(self.config, self.data.order.steps_per_epoch)

    @property
    def total_samples(self) -> int:
        """Samples of the whole run."""
        epochs, steps = divmod(self.total_steps, self.data.order.steps_per_epoch)
        return epochs * self.data.order.epoch_size + steps * self.data.order.global_batch_size

    def set_learning_rate(self, step: int) -> float:
        """Set that of the step after `step` steps for every group; returns the run's."""
        learning_rate = self.plan.learning_rate * learning_rate_factor(step, self.total_steps, self.config)
        factors = [group.learning_rate_factor for group in self.groups]
        set_learning_rate(self.guarded_step.optimizer, learning_rate, factors)
        return learning_rate


@dataclass(frozen=True)
class Parallelism:
    """What a trainer's way of using several devices changes in the set-up."""

    wrap_model: Callable[[Family], Weights]
    scaler_class: type[torch.amp.GradScaler]
    equal_micro_batches: bool  # every rank needs as many micro-batches as the others
    backup_writer: Callable[[Rotation], BackupWriter]


def build_components(
    config: TrainConfig,
    folder: RunFolder,
    plan: Plan,
    ranks: RankGroup,
    parallelism: Parallelism,
    report: Report,
    check_stop: Callable[[], None],
    select_rows: RowSelection | None = None,
) -> Components:
    """Everything, ready for a backup to be restored into; `select_rows` says which images to encode, without it all.

    Raises TandemError if config or data cannot be used.
    """
    precision = choose_precision(config, ranks, parallelism)
    kind = check_available(config)
    fetch_base_model(kind, config, ranks, report, check_stop)
    check_memory(kind, config, ranks.device, ranks.world_size)
    data_config = resolve_data(config, kind, ranks, report, check_stop)
    family = load_family(data_config)
    plan = replace(plan, initial_model=check_initial_model(family, config, plan.initial_model))
    requests = _checked_requests(config, family, report)
    prepare_model(family, config, precision, ranks)
    family.device = ranks.device
    problems_file, equal = folder.log_dir / "problems.txt", parallelism.equal_micro_batches
    batch = plan.global_batch_size
    if kind.brings_data:
        data = prepare_own_data(config, family, batch, ranks, report, problems_file, equal_micro_batches=equal)
    else:
        data = prepare_dataset(
            data_config,
            family,
            precision,
            batch,
            ranks,
            report,
            problems_file,
            check_stop,
            equal_micro_batches=equal,
            select_rows=select_rows,
        )
    check_validation(config, data)
    family.offload_frozen()
    weights = parallelism.wrap_model(family)
    groups, guarded_step = _optimization(config, family, weights, precision, ranks.world_size)
    return Components(
        config=config,
        folder=folder,
        plan=plan,
        device=ranks.device,
        precision=precision,
        family=family,
        weights=weights,
        groups=groups,
        data=data,
        guarded_step=guarded_step,
        fused_backward=FusedBackward(guarded_step, weights) if config.fused_backward else None,
        ema=_average(config, weights, batch) if config.ema else None,
        schedule_free=ScheduleFreeWeights.of(guarded_step.optimizer, weights),
        backups=parallelism.backup_writer(
            Rotation(config.backups_kept, config.backups_kept_every, config.backups_kept_days)
        ),
        sample_requests=requests,
    )


def _checked_requests(config: TrainConfig, family: Family, report: Report) -> list[SampleRequest]:
    """The samples to draw, with a warning for each prompt that the family cannot take as it is."""
    requests = sample_requests(config, family.size_step)
    for warning in family.prompt_warnings([text for each in requests for text in (each.prompt, each.negative_prompt)]):
        report.warning(f"Samples: {warning}")
    return requests


def _optimization(
    config: TrainConfig, family: Family, weights: Weights, precision: Precision, world_size: int
) -> tuple[list[SubmoduleGroup], GuardedStep]:
    """The optimizer's groups, and its step."""
    undecayed = [] if config.decay_norms_and_biases else without_decay(weights.model)
    groups = parameter_groups(submodule_groups(family, config, weights.local), weights.shapes, config, undecayed)
    held = optimizer_weights(weights.local)
    optimizer = build_optimizer([group.for_optimizer(held) for group in groups], config)
    single = None
    if config.stochastic_rounding or config.fused_backward:
        single = SingleSteps(optimizer, weights.local, held, config.seed, weights.rows)
    return groups, GuardedStep(optimizer, weights, precision.scaler, config.max_grad_norm, single, world_size)


def _average(config: TrainConfig, weights: Weights, global_batch_size: int) -> Ema:
    decay = decay_for_batch(config.ema_decay, global_batch_size, config.ema_reference_batch_size)
    return Ema(weights.local, decay, weights.swap, config.ema_update_every, on_cpu=config.ema_on_cpu)


def choose_precision(config: TrainConfig, ranks: RankGroup, parallelism: Parallelism) -> Precision:
    """With TF32 only if every rank's GPU has it: ranks that fill one cache together have to compute alike."""
    own = can_use_tf32(config.precision, ranks.device)
    tf32 = all(answer == str(True) for answer in ranks.gather("tf32", str(own)))
    return Precision(
        config.precision, ranks.device, parallelism.scaler_class, tf32=tf32, attention=config.attention_backend
    )
