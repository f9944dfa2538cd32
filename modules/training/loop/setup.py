"""Building everything that a run needs before its first step, in dependency order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from modules.checkpoint import Rotation
from modules.config import AUTO, ConfigError, TrainConfig, balance_numbers, check_balance
from modules.config.schedules import warmup_steps
from modules.data.loading.order import Order
from modules.data.loading.shares import Shares
from modules.distributed import RankGroup, SharedFolderGroups, Weights
from modules.families._family import Family, SampleRequest
from modules.monitoring import Report
from modules.run import RunFolder
from modules.run.format_progress import BYTES
from modules.training.backup.writer import BackupWriter
from modules.training.data.custom_dataset import prepare_custom_dataset
from modules.training.data.dataset import RowSelection, check_validation, prepare_dataset, resolve_data, run_steps
from modules.training.data.rescan import Rescan
from modules.training.device.precision import Precision, can_use_tf32
from modules.training.memory.model_setup import check_available, load_family, prepare_model
from modules.training.memory.report import check_memory
from modules.training.methods.submodules import SubmoduleGroup, submodule_groups
from modules.training.optim.ema import Ema, decay_for_batch
from modules.training.optim.fused_backward import FusedBackward
from modules.training.optim.optimizers import GuardedStep, build_optimizer
from modules.training.optim.own_schedule import OwnSchedule, name_of_builder, scheduler_of
from modules.training.optim.parameter_groups import parameter_groups, without_decay
from modules.training.optim.per_parameter_step import PerParameterStep, optimizer_weights
from modules.training.optim.schedule_free import ScheduleFreeWeights
from modules.training.state.components import Components
from modules.training.state.plan import Plan
from modules.training.state.resume import check_initial_model
from modules.training.state.sample_requests import sample_requests
from modules.training.step.load_balancer import LoadBalancer


@dataclass(frozen=True)
class Parallelism:
    """What a trainer's way of using several devices changes in the set-up."""

    wrap_model: Callable[[Family], Weights]
    scaler_class: type[torch.amp.GradScaler]
    equal_micro_batches: bool  # every rank needs as many micro-batches as the others
    backup_writer: Callable[[Rotation], BackupWriter]
    gradient_ranks: int  # over how many the gradients are averaged


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
    check_balance(config.balance, ranks.world_size)
    precision = choose_precision(config, ranks, parallelism)
    kind = check_available(config)
    fetch_base_model(kind, config, ranks, report, check_stop)
    # by torchrun, or without a machine that was lost
    there = {"num_nodes": ranks.machines, "node_rank": 0, "processes_per_node": None, "world_size": None}
    check_memory(kind, config.model_copy(update=there), ranks.device, ranks.world_size)
    copies = ExitStack()
    data_config = resolve_data(config, kind, ranks, report, check_stop, copies, by_image=plan.by_image)
    family = load_family(data_config)
    plan = replace(plan, initial_model=check_initial_model(family, config, plan.initial_model))
    requests = _checked_requests(config, family, report)
    prepare_model(family, config, precision, ranks)
    family.device = ranks.device
    problems_file, equal = folder.log_dir / "problems.txt", parallelism.equal_micro_batches
    batch, shares = plan.global_batch_size, Shares(balance_numbers(config.balance) if ranks.world_size > 1 else ())
    rescan = None
    if kind.brings_data:
        data = prepare_custom_dataset(
            config, family, batch, ranks, report, problems_file, shares=shares, equal_micro_batches=equal
        )
    else:
        prepare = partial(
            prepare_dataset,
            data_config,
            family,
            precision,
            batch,
            report=report,
            problems_file=problems_file,
            check_stop=check_stop,
            shares=shares,
            equal_micro_batches=equal,
            select_rows=select_rows,
            by_image=plan.by_image,
        )
        data = prepare(ranks=ranks, former=plan.former)
        data.held.push(copies)
        if config.rescan == "epoch" and plan.by_image:
            rescan = Rescan(config, data_config, family, prepare, ranks, report)
        elif config.rescan == "epoch":
            report.warning("rescan=epoch has no effect: the order of a run that began up to 0.2.0 goes by row numbers.")
        plan = replace(plan, former=None)  # much memory
    for warning in dict.fromkeys(filter(None, ranks.gather("loader processes", data.loader.warning))):
        report.warning(warning)
    check_validation(config, data)
    family.expected_requests = requests
    family.offload_frozen()
    weights = parallelism.wrap_model(family)
    groups, guarded_step = _optimization(config, family, weights, precision, parallelism.gradient_ranks)
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
        schedule=own_schedule(config, family, guarded_step, plan, groups, data.order),
        fused_backward=FusedBackward(guarded_step, weights) if config.fused_backward else None,
        ema=_average(config, weights, batch) if config.ema else None,
        schedule_free=ScheduleFreeWeights.of(guarded_step.optimizer, weights),
        backups=parallelism.backup_writer(
            Rotation(config.backups_kept, config.backups_kept_every, config.backups_kept_days)
        ),
        sample_requests=requests,
        rescan=rescan,
    )


def load_balancer(components: Components, ranks: RankGroup, report: Report) -> LoadBalancer | None:
    """What follows the speed of several ranks, if the config asks for it; called by all ranks."""
    if components.config.balance != AUTO or ranks.world_size == 1:
        return None
    # each machine may have its own loader_workers and prefetch_factor
    read_ahead = max(map(int, ranks.gather("read ahead", str(components.data.loader.read_ahead))))
    samples = components.plan.global_batch_size
    return LoadBalancer(components.data.shares, ranks.world_size, samples, read_ahead + 1, report)


def _checked_requests(config: TrainConfig, family: Family, report: Report) -> list[SampleRequest]:
    """The samples to draw, with a warning for each prompt that the family cannot take as it is."""
    requests = sample_requests(config, family.size_step)
    for warning in family.prompt_warnings([text for each in requests for text in (each.prompt, each.negative_prompt)]):
        report.warning(f"Samples: {warning}")
    return requests


def _optimization(
    config: TrainConfig, family: Family, weights: Weights, precision: Precision, gradient_ranks: int
) -> tuple[list[SubmoduleGroup], GuardedStep]:
    """The optimizer's groups, and its step."""
    undecayed = [] if config.decay_norms_and_biases else without_decay(weights.model)
    groups = parameter_groups(submodule_groups(family, config, weights.local), weights.shapes, config, undecayed)
    held = optimizer_weights(weights.local)
    optimizer = build_optimizer([group.for_optimizer(held) for group in groups], config, family.own_optimizer(config))
    per_parameter = None
    if config.stochastic_rounding or config.fused_backward:
        per_parameter = PerParameterStep(optimizer, weights.local, held, config.seed, weights.rows)
    return groups, GuardedStep(
        optimizer, weights, precision.scaler, config.max_grad_norm, per_parameter, gradient_ranks
    )


def own_schedule(
    config: TrainConfig,
    family: Family,
    guarded_step: GuardedStep,
    plan: Plan,
    groups: Sequence[SubmoduleGroup],
    order: Order,
) -> OwnSchedule | None:
    """That of a scheduler which is none of Tandem's, checked over the whole run. Raises ConfigError."""
    build = scheduler_of(config, family.own_scheduler(config))
    if build is None:
        return None
    steps = run_steps(order, config)
    every, epochs_after = 1, None
    if config.scheduler_interval == "epoch":
        every, epochs_after = order.steps_per_epoch, order.epochs_after
    schedule = OwnSchedule(
        build,
        guarded_step.optimizer,
        [plan.learning_rate * each.learning_rate_factor for each in groups],
        warmup_steps(config, steps),
        every,
        name_of_builder(config),
        epochs_after,
    )
    schedule.check(steps)
    return schedule


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


# What a rank says about its hub cache; a model on its disk needs none.
_WRITABLE, _READ_ONLY, _LOCAL_MODEL = "writable", "read only", ""


def fetch_base_model(
    family: type[Family], config: TrainConfig, ranks: RankGroup, report: Report, check_stop: Callable[[], None]
) -> None:
    """Download what `family` loads from the hub into the hub cache of every machine.

    Raises ConfigError if it is not available or not the same everywhere, and whatever `check_stop` raises meanwhile.
    """
    model = family.hub_model(config)
    caches = ranks.gather("base model", _LOCAL_MODEL if model is None else _cache_access(model.cache_dir))
    if model is None or _LOCAL_MODEL in caches:
        _check_same_source(config, caches)
        return
    groups = _cache_groups(model.cache_dir, caches, ranks)
    reported = (0, 0)

    def on_progress(done: int, total: int) -> None:
        nonlocal reported
        check_stop()
        if (done, total) != reported:
            reported = (done, total)
            report.phase("downloading", done, total, BYTES)

    def download() -> None:
        if groups.is_first_in_group and (warning := model.download(on_progress)):
            report.warning(warning)

    ranks.run_on_all("downloading", download)
    folder = model.cached_folder()
    _check_same_commit(model.label, ranks.gather("commit", "" if folder is None else folder.name))
    report.phase("loading")


def _cache_groups(cache: Path, caches: list[str], ranks: RankGroup) -> SharedFolderGroups:
    """The ranks that share a cache; a read-only one is checked for completeness by every rank on its own."""
    if _READ_ONLY in caches:
        return SharedFolderGroups(ranks.rank, tuple((rank,) for rank in range(ranks.world_size)))
    return ranks.shared_folder_groups("the hub's cache (HF_HOME)", cache)


def _cache_access(cache: Path) -> str:
    existing = next((folder for folder in (cache, *cache.absolute().parents) if folder.is_dir()), cache)
    return _WRITABLE if os.access(existing, os.W_OK) else _READ_ONLY


def _check_same_source(config: TrainConfig, caches: list[str]) -> None:
    on_hub = [rank for rank, cache in enumerate(caches) if cache != _LOCAL_MODEL]
    if on_hub:
        local = caches.index(_LOCAL_MODEL)
        raise ConfigError(
            f"base_model: {config.base_model!r} is on the disk of rank {local}, and not on that of rank {on_hub[0]}, "
            "which would download it.",
            "Give a path that all machines have, or a hub id that is not a folder on any of them.",
        )


def _check_same_commit(name: str, commits: list[str]) -> None:
    different = next((rank for rank, commit in enumerate(commits) if commit != commits[0]), None)
    if different is not None:
        raise ConfigError(
            f"base_model: rank 0 has another version of {name!r} ({commits[0] or 'none'}) than rank {different} "
            f"({commits[different] or 'none'}).",
            "One of the machines could not ask the hub for the newest version; start again when all can, or name a "
            "version that all have: owner/model@commit.",
        )
