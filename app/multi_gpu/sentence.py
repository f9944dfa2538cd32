"""What the settings amount to: "2 nodes x 4 GPUs x batch 2 x accumulation 1 = 16; learning rate 1e-4 becomes ..."."""

from __future__ import annotations

from app import texts
from modules.config import ConfigError, TrainConfig, effective_batch, learning_rate_scale
from modules.machine import Gpu
from modules.run import LaunchPlan


def describe(config: TrainConfig | None, gpus: list[Gpu] | None = None) -> tuple[str, str]:
    """(sentence, fault): how many processes train with which batch and learning rate, or why they cannot.

    `gpus` are this machine's unless given. Asks the driver: call it off the main thread.
    """
    if config is None:
        return "", texts.PLAN_UNKNOWN
    try:
        plan = LaunchPlan.from_config(config, config_path="config.json", gpus=gpus)
    except ConfigError as error:
        return "", str(error)
    world = plan.world_size
    if world is None:
        return texts.PLAN_WORLD_UNKNOWN, ""
    return f"{_processes(plan, bool(gpus))}{_batch(config, world)}{_learning_rate(config, world)}", ""


def _processes(plan: LaunchPlan, on_gpus: bool) -> str:
    counts = [count for count in plan.process_counts if count is not None]
    unit = texts.UNIT_GPU if plan.backend == "nccl" or on_gpus else texts.UNIT_PROCESS
    if len(counts) == 1:
        return texts.PLAN_HERE.format(count=counts[0], unit=texts.plural(counts[0], unit))
    if len(set(counts)) == 1:
        return texts.PLAN_NODES.format(nodes=len(counts), count=counts[0], unit=texts.plural(counts[0], unit))
    return texts.PLAN_UNEQUAL.format(counts=" + ".join(map(str, counts)), unit=texts.plural(sum(counts), unit))


def _batch(config: TrainConfig, world: int) -> str:
    total = effective_batch(config, world)
    if config.global_batch_size:
        return texts.PLAN_FIXED_BATCH.format(total=total)
    return texts.PLAN_BATCH.format(batch=config.batch_size, steps=config.gradient_accumulation_steps, total=total)


def _learning_rate(config: TrainConfig, world: int) -> str:
    scale = learning_rate_scale(config, world)
    given = f"{config.learning_rate:g}"
    if scale == 1:
        return texts.PLAN_SAME_RATE.format(rate=given)
    return texts.PLAN_SCALED_RATE.format(rate=given, scaled=f"{config.learning_rate * scale:.3g}")
