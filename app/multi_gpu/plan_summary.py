"""A one-sentence summary: "2 nodes × 4 GPUs × batch 2 × accumulation 1 = 16; learning rate 1e-4 becomes ..."."""

from __future__ import annotations

from typing import Final, NamedTuple

from app.form.setting_text import setting_named
from app.place import planned
from modules.config import ConfigError, TrainConfig, effective_batch, learning_rate_scale
from modules.config.numbers import plain_number
from modules.files import printable
from modules.run import LaunchPlan
from modules.run.hosts.hardware import Hardware

INVALID_SETTINGS: Final = "Some settings are not valid yet."


class Summary(NamedTuple):
    """`fault` says why the plan is impossible, `setting` what is at fault; `backend` is what is used."""

    sentence: str
    fault: str = ""
    backend: str = ""
    setting: str = ""


def describe(config: TrainConfig | None, machine: Hardware | None = None) -> Summary:
    """How many processes train with which batch and learning rate on this computer, or on the machine where Train
    starts the run; or why they cannot.

    Queries the driver: call it off the main thread.
    """
    if config is None:
        return Summary("", INVALID_SETTINGS)
    try:
        plan = planned(config, machine)
    except ConfigError as error:
        return Summary("", str(error), setting=setting_named(str(error)))
    if machine is not None and machine.obstacle and config.device != "cpu":
        return Summary("", f"{machine.name} cannot use its GPUs: {printable(machine.obstacle).rstrip('.')}.")
    if plan is None and machine is not None and machine.is_cluster:
        return Summary(f"{machine}")
    if plan is None:
        return Summary("The number of processes is known once the devices of the machine are.")
    world = plan.world_size
    if world is None:
        return Summary("The number of processes is known once every machine has counted its GPUs.")
    sentence = f"{_processes(plan, config, machine)}{_batch(config, world)}{_learning_rate(config, world)}"
    sentence = sentence if machine is None else f"On {machine.name}: {sentence}"
    return Summary(sentence, backend=_backend(plan))


def _backend(plan: LaunchPlan) -> str:
    if plan.world_size == 1:
        return "Not used by a single process."
    reason = next((reason for reason in plan.reasons if reason.startswith("backend ")), "")
    return f"Gloo is used here: {reason.partition(': ')[2]}." if reason else ""


def _processes(plan: LaunchPlan, config: TrainConfig, machine: Hardware | None) -> str:
    on_gpus = machine is not None and bool(machine.gpus) and config.device != "cpu"
    counts = [count for count in plan.process_counts if count is not None]
    unit, plural = ("GPU", "GPUs") if plan.backend == "nccl" or on_gpus else ("process", "processes")
    if len(set(counts)) > 1:
        return f"{' + '.join(map(str, counts))} {plural}"
    nodes = "" if len(counts) == 1 else f"{len(counts)} nodes × "
    return f"{nodes}{counts[0]} {unit if counts[0] == 1 else plural}"


def _batch(config: TrainConfig, world: int) -> str:
    total = effective_batch(config, world)
    if config.global_batch_size:
        return f", effective batch fixed at {total}"
    return f" × batch {config.batch_size} × accumulation {config.gradient_accumulation_steps} = {total}"


def _learning_rate(config: TrainConfig, world: int) -> str:
    scale = learning_rate_scale(config, world)
    given, scaled = (
        plain_number(float(f"{rate:.3g}")) for rate in (config.learning_rate, config.learning_rate * scale)
    )
    return f"; learning rate {given}." if scale == 1 else f"; learning rate {given} becomes {scaled}."
