"""What a run is made of: for its `started` event, and for the first and last lines on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from modules.checkpoint import Position, StoredState
from modules.config import AUTO, EQUAL, TrainConfig, end_of_run
from modules.config.own_builders import own_optimizer_note
from modules.config.schedules import learning_rate_factor, long_warmup, own_scheduler_note
from modules.config.unused import unused_settings
from modules.data.loading.progress import Progress
from modules.data.loading.shares import describe_shares
from modules.distributed import ClusterInfo, RankGroup, cluster_lines, cluster_warnings, device_name
from modules.machine import hostname
from modules.monitoring import RankStepTimes, Report
from modules.run import RunFolder
from modules.run.endings import ENDINGS
from modules.torch_compat import AnyBatchNorm
from modules.training.methods.lora_files import file_limits
from modules.training.methods.method import method_summary
from modules.training.state.components import Components
from modules.training.state.requests import Outcome
from modules.training.step.metrics import RANK_METRICS

LENGTHS: Final = ("epochs", "max_steps")  # the settings that say when a run ends


def run_info(components: Components, ranks: RankGroup) -> dict[str, object]:
    """The content of the `started` event; `devices` and `ranks` have one entry for each rank."""
    cluster_info = ranks.cluster_info
    return {
        "config": components.config.model_dump(mode="json"),
        "world": len(cluster_info.rows),
        "backend": ranks.backend,
        "host": hostname(),
        "devices": [f"{row.model} on {row.host}" for row in cluster_info.rows],
        "ranks": [row.event() for row in cluster_info.rows],
        "versions": dict(cluster_info.rows[0].versions),
        "trainable_parameters": components.weights.num_trainable,
        "global_batch_size": components.plan.global_batch_size,
        "steps_per_epoch": components.data.order.steps_per_epoch,
        "total_steps": components.total_steps,
        "original_learning_rate": components.plan.original_learning_rate,
        "learning_rate": components.plan.learning_rate,
    }


def rank_times(sums: Mapping[str, float], cluster_info: ClusterInfo) -> list[RankStepTimes]:
    """Each rank's times of a step, from the sums over the ranks, to which each rank adds only its own."""
    return [
        RankStepTimes(row.rank, row.host, **{name: sums[f"{name}/{row.rank}"] for name in RANK_METRICS})
        for row in cluster_info.rows
    ]


def report_cluster(cluster_info: ClusterInfo, config: TrainConfig, report: Report) -> None:
    """The start-up report: what every rank runs on, and what is odd about it."""
    for line in cluster_lines(cluster_info):
        report.note(line)
    shards_over_hosts = config.training_mode == "fully_sharded" and config.fsdp_replicate == "none"
    for text in cluster_warnings(
        cluster_info,
        config.global_batch_size,
        equal_shares=config.balance == EQUAL,
        fully_sharded=shards_over_hosts,
    ):
        report.warning(text)


def announce(components: Components, progress: Progress, ranks: RankGroup, report: Report) -> None:
    """Report on the terminal and to the window what is about to be trained."""
    for line in summary(components, ranks.world_size):
        report.note(line)
    for text in file_limits(components.family, components.config):
        report.warning(text)
    if text := long_warmup(components.config, components.total_steps):
        report.warning(text)
    if progress.step >= components.total_steps:
        report.note("All steps of this config are done already; raise epochs or max_steps to train further.")
    report.started(
        run_info(components, ranks),
        first_step=progress.step,
        total_steps=components.total_steps,
        total_samples=components.total_samples,
    )


def report_resume(state: StoredState, components: Components, progress: Progress, report: Report) -> None:
    """Where a resumed run goes on, whether its data is as large as before, and what another length means to it."""
    position = state.position
    if state.data is None and position.epoch_size != progress.epoch_size:  # else more is known, and was told
        report.warning(
            f"The data has changed since the backup: an epoch had {position.epoch_size:,} samples and now has "
            f"{progress.epoch_size:,}. The run continues, but not exactly as it would have."
        )
    if text := length_change(components, position.total_steps, progress.step):
        report.warning(text)
    if text := inner_batch_change(position, components.weights.machines):
        report.warning(text)
    ranks = f"{position.world_size} rank{'s' * (position.world_size != 1)}"
    report.note(f"Resuming at step {progress.step:,} (the backup was made by {ranks}).")
    if changed := other_length(components, state.config, progress.step):
        report.warning(changed)


def inner_batch_change(position: Position, machines: int) -> str:
    """What another number of machines that train by themselves means to their steps; empty if it is the same."""
    if machines == position.machines:
        return ""
    before, now = (f"{position.global_batch_size / count:.4g} samples" for count in (position.machines, machines))
    return (
        f"Local updates: a machine's step now has {now} on average instead of {before}, because {machines} instead of "
        f"{position.machines} train by themselves; the learning rate is kept. With few samples a lower learning_rate "
        "may be needed, with more a higher one."
    )


def length_change(components: Components, before: int | None, step: int) -> str:
    """What the run's new number of steps means after `step` of them, if other data has changed it from `before`."""
    now = components.total_steps
    if components.pace is None or components.pace.since != step or before in (None, now):
        return ""
    spread = (
        ""
        if components.config.scheduler in ("constant", "custom")
        else "; the rest of the schedule is spread over them"
    )
    return f"The run now has {now:,} steps instead of {before:,}{spread}."


def other_length(components: Components, former: Mapping[str, object], step: int) -> str:
    """What another number of steps than in the config `former` does to the learning rate; empty if nothing."""
    config, now = components.config, components.total_steps
    lengths = {name: former[name] for name in LENGTHS if isinstance(former.get(name), int | None)}
    before = replace(components, config=config.model_copy(update=lengths)).total_steps
    factors = [learning_rate_factor(step, steps, config) for steps in (before, now)]
    if before == now or factors[0] == factors[1] or step >= now:
        return ""
    was, is_ = (f"{components.plan.learning_rate * factor:.3g}" for factor in factors)
    return (
        f"The run now has {now:,} steps instead of {before:,}, over which its learning rate is spread: that of step "
        f"{step + 1:,} is {is_}, where it would have been {was}."
    )


def summary(components: Components, world_size: int) -> list[str]:
    """The lines on the terminal before the first step."""
    plan, weights = components.plan, components.weights
    processes = "one process" if world_size == 1 else f"{world_size} processes"
    count = weights.num_trainable
    parameters = f"{count / 1e6:.2f} M" if count >= 10_000 else f"{count:,}"
    first = (
        f"Training {parameters} parameters in {processes} on {device_name(components.device)}, "
        f"{components.config.precision}; effective batch {plan.global_batch_size}, "
        f"{components.total_steps:,} steps, {components.data.order.steps_per_epoch:,} per epoch."
    )
    schedule = own_scheduler_note(components.config)
    end = end_of_run(components.config, components.data.order.steps_per_epoch)
    method = method_summary(components.family, components.config, weights)
    groups = (group.summary(plan.learning_rate) for group in components.groups)
    notes = components.family.base_model_notes(components.config)
    batch_norm = batch_norm_note(weights.model, components.config, components.device, world_size)
    shares = _shares(components, world_size)
    as_started = components.config.model_copy(update={"enable_multi_gpu": True} if world_size > 1 else {})
    last = (_idle_warning(components), shares, weights.summary(), batch_norm, plan.explanation)
    unused = unused_settings(as_started)
    lines = (first, end, own_optimizer_note(components.config), schedule, *notes, method, *groups, *unused, *last)
    return [line for line in lines if line]


def _shares(components: Components, world_size: int) -> str:
    """A sentence about the shares of several ranks, unless they are simply equal."""
    if world_size == 1 or components.config.balance == EQUAL:
        return ""
    shares = describe_shares(components.plan.global_batch_size, world_size, components.data.shares.first)
    until = " until their speed is known" if components.config.balance == AUTO else ""
    return f"Load balancing: the ranks take {shares}{until}."


def batch_norm_note(model: nn.Module, config: TrainConfig, device: torch.device, world_size: int) -> str:
    """A sentence if BatchNorm meets several GPUs without sync_batch_norm, which there is none of on a CPU."""
    if world_size == 1 or device.type == "cpu" or config.sync_batch_norm:
        return ""
    count = sum(isinstance(module, AnyBatchNorm) and module.training for module in model.modules())
    if not count:
        return ""
    return (
        f"Note: {count} BatchNorm layers average over the {config.batch_size} images of each GPU's batch; with "
        "sync_batch_norm over those of all GPUs, as on one."
    )


def _idle_warning(components: Components) -> str:
    """A sentence if stop_after freezes every submodule before the last step."""
    order = components.data.order
    last = order.progress(max(0, components.total_samples - order.global_batch_size))
    if components.groups and all(group.is_frozen(last) for group in components.groups):
        return "Note: stop_after freezes every part before the run ends; the steps after that train nothing."
    return ""


def final_message(outcome: Outcome, step: int, folder: RunFolder) -> str:
    """The last line on the terminal."""
    return ENDINGS[outcome.reason].at_step(step, folder.path)
