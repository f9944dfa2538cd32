"""A one-sentence summary: "2 nodes × 4 GPUs × batch 2 × accumulation 1 = 16; learning rate 1e-4 becomes ..."."""

from __future__ import annotations

from typing import Final, NamedTuple

from app.form.setting_text import setting_named
from modules.config import ConfigError, TrainConfig, effective_batch, learning_rate_scale
from modules.config.numbers import plain_number
from modules.machine import Gpu
from modules.run import LaunchPlan

INVALID_SETTINGS: Final = "Some settings are not valid yet."


class Summary(NamedTuple):
    """`fault` says why the plan is impossible, `setting` what is at fault; `backend` is what is used."""

    sentence: str
    fault: str = ""
    backend: str = ""
    setting: str = ""


def describe(config: TrainConfig | None, gpus: list[Gpu] | None = None) -> Summary:
    """How many processes train with which batch and learning rate, or why they cannot.

    `gpus` default to this machine's. Queries the driver: call it off the main thread.
    """
    if config is None:
        return Summary("", INVALID_SETTINGS)
    try:
        plan = LaunchPlan.from_config(config, config_path="config.json", gpus=gpus)
    except ConfigError as error:
        return Summary("", str(error), setting=setting_named(str(error)))
    world = plan.world_size
    if world is None:
        return Summary("The number of processes is known once every machine has counted its GPUs.")
    sentence = f"{_processes(plan, bool(gpus))}{_batch(config, world)}{_learning_rate(config, world)}"
    return Summary(sentence, backend=_backend(plan))


def _backend(plan: LaunchPlan) -> str:
    if plan.world_size == 1:
        return "Not used by a single process."
    reason = next((reason for reason in plan.reasons if reason.startswith("backend ")), "")
    return f"Gloo is used here: {reason.partition(': ')[2]}." if reason else ""


def _processes(plan: LaunchPlan, on_gpus: bool) -> str:
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
