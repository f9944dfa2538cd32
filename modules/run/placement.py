"""How many processes train where: the rules behind `training_mode`, as one pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from modules.config import ConfigError, TrainConfig

Mode = Literal["single", "data_parallel", "distributed", "fully_sharded"]

# More gloo processes than this on one core only wait for each other.
_MOST_PROCESSES_PER_CORE: Final = 8


@dataclass(frozen=True)
class Placement:
    """The mode that will really be used, its processes, and why it is not the one asked for."""

    mode: Mode
    processes_per_node: int = 1
    num_nodes: int = 1
    reasons: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Processes on all nodes together."""
        return self.processes_per_node * self.num_nodes


def place(config: TrainConfig, *, gpus: int, cores: int, require_multi_gpu: bool = False) -> Placement:
    """Mode and processes on a node with so many usable GPUs and cores; ConfigError where it cannot be."""
    wanted = _wanted_mode(config)
    if config.num_nodes > 1 and wanted in {"single", "data_parallel"}:
        raise ConfigError(
            f"num_nodes is {config.num_nodes}, but one process on one machine was asked for",
            "Set num_nodes to 1, or turn on enable_multi_gpu (--multi_gpu) with training_mode=auto",
        )
    if wanted == "single":
        placement = Placement("single", reasons=_unused_world_size(config))
    elif wanted == "data_parallel":
        placement = _data_parallel(gpus)
    else:
        placement = _distributed(config, wanted, gpus, cores)
    if require_multi_gpu and placement.mode == "single":
        reason = next(iter(placement.reasons), f"training_mode={config.training_mode} is one device")
        raise ConfigError(f"several GPUs are required (--require_multi_gpu), but {reason}")
    return placement


def _wanted_mode(config: TrainConfig) -> Mode:
    if config.training_mode != "auto":
        return config.training_mode
    return "distributed" if config.enable_multi_gpu else "single"


def _unused_world_size(config: TrainConfig) -> tuple[str, ...]:
    if config.training_mode == "single" or config.world_size in {None, 1}:
        return ()
    return (f"world_size={config.world_size} has no effect: enable_multi_gpu is off (--multi_gpu turns it on)",)


def _data_parallel(gpus: int) -> Placement:
    if gpus > 1:
        return Placement("data_parallel")
    reason = f"data_parallel needs two GPUs, but {_found(gpus)}: training on one device"
    return Placement("single", reasons=(reason,))


def _distributed(config: TrainConfig, mode: Mode, gpus: int, cores: int) -> Placement:
    per_node = _processes_per_node(config, gpus)
    most = gpus or cores * _MOST_PROCESSES_PER_CORE
    if per_node > most:
        raise ConfigError(_too_many(config, per_node, gpus, cores))
    # One process that was asked for by number is a group of one, which is how distributed code is tried out.
    is_chosen = config.training_mode != "auto" and config.world_size == 1
    if per_node * config.num_nodes == 1 and not is_chosen:
        return Placement("single", reasons=(_why_single(config, gpus),))
    return Placement(mode, per_node, config.num_nodes)


def _processes_per_node(config: TrainConfig, gpus: int) -> int:
    if config.world_size is None:
        return max(1, gpus)
    per_node, rest = divmod(config.world_size, config.num_nodes)
    if rest or not per_node:
        raise ConfigError(
            f"world_size is {config.world_size}; it does not divide evenly by num_nodes={config.num_nodes}",
            "Use a multiple of num_nodes, or leave world_size empty for every GPU of every machine",
        )
    return per_node


def _too_many(config: TrainConfig, per_node: int, gpus: int, cores: int) -> str:
    where = "this machine" if config.num_nodes == 1 else "each machine"
    if gpus:
        limit = f"{_found(gpus)}; use at most {gpus * config.num_nodes}"
    else:
        limit = (
            f"without a GPU at most {_MOST_PROCESSES_PER_CORE} processes per core are of use; "
            f"use at most {cores * _MOST_PROCESSES_PER_CORE * config.num_nodes}"
        )
    return f"world_size is {config.world_size}, which is {per_node} processes on {where}, but {limit}"


def _why_single(config: TrainConfig, gpus: int) -> str:
    if config.world_size == 1:
        return "world_size=1: training on one device"
    advice = "" if gpus else " (world_size=2 would start two processes on the CPU)"
    return f"several GPUs were asked for, but {_found(gpus)}: training on one device{advice}"


def _found(gpus: int) -> str:
    return {0: "no GPU was found", 1: "one GPU was found"}.get(gpus, f"{gpus} GPUs were found")
