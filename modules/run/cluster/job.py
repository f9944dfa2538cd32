"""A job of a cluster: the config of its processes, settings that have no effect there, its time limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from modules.config import ConfigError, TrainConfig

_TIME: Final = re.compile(r"(?:(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?|(?P<parts>\d+(?::\d+){0,2}))")
_TIME_FORMS: Final = "minutes, HOURS:MINUTES:SECONDS, DAYS-HOURS or DAYS-HOURS:MINUTES:SECONDS"
_UNLIMITED: Final = {"unlimited", "infinite"}


def config_of_job(config: TrainConfig, *, processes: int, nodes: int, cpu: bool, loss: tuple[str, str]) -> TrainConfig:
    """The config with the layout of the job, overriding its settings for other machines.

    `loss` is what the cluster does when one of `nodes` is lost, and how the run then goes on. Raises ConfigError if
    the config does not fit.
    """
    if processes > 1 and config.training_mode in {"single", "data_parallel"}:
        raise ConfigError(
            f"training_mode is {config.training_mode}, which is one process, but {processes} are requested",
            "Set training_mode to auto, or --gpus to 1",
        )
    if nodes > 1 and config.on_machine_loss != "end":
        what, then = loss
        raise ConfigError(
            f"on_machine_loss is {config.on_machine_loss}, but {what}", f"Set on_machine_loss to end: {then}"
        )
    settings: dict[str, object] = {
        "enable_multi_gpu": processes > 1,
        "world_size": processes if processes > 1 else None,
        "num_nodes": nodes,
        "node_rank": 0,
        "processes_per_node": None,
        "device_ids": None,
    }
    if cpu:
        settings |= {"distributed_backend": "gloo", "device": "cpu"}
    return config.model_copy(update=settings)


def without_effect(
    config: TrainConfig, *, nodes: int, per_node: int, cluster: str, more: Mapping[str, tuple[bool, str]]
) -> list[str]:
    """A sentence for each setting that the job decides otherwise, and for each option of `more` that is given and of
    no use: whether it is, and why."""
    started = f"the job has {pluralize(nodes * per_node, 'process')}"
    unused = {
        "device_ids": (config.device_ids is not None, f"{cluster} chooses the GPUs"),
        "world_size": (config.world_size not in {None, nodes * per_node}, started),
        "processes_per_node": (
            config.processes_per_node not in {None, (per_node,) * nodes, (per_node,)},
            f"{started}, {per_node} on each node",
        ),
        **more,
    }
    return [f"{name} has no effect: {why}." for name, (is_given, why) in unused.items() if is_given]


def pluralize(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`, `2 CPU processes`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def require_positive(**values: int | None) -> None:
    """Raise ConfigError for the first option whose number is below 1."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise ConfigError(f"--{name} is {value}; it must be 1 or more")


def time_limit_s(text: str) -> int | None:
    """A time limit in Slurm's notation in seconds; None for no limit. Raises ConfigError if it is invalid."""
    if text.lower() in _UNLIMITED:
        return None
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConfigError(f"--time is {text!r}; write it as {_TIME_FORMS}, such as 90 or 1-12:00:00")
    if found["parts"] is None:
        days, hours, minutes, seconds = (int(found[name] or 0) for name in "dhms")
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    numbers = [int(part) for part in found["parts"].split(":")]
    if len(numbers) < 3:  # MINUTES or MINUTES:SECONDS
        numbers = [0, *numbers, 0][:3]
    hours, minutes, seconds = numbers
    return (hours * 60 + minutes) * 60 + seconds
