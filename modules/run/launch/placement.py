"""How many processes train on which machine: the rules behind `training_mode`, as a pure function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from modules.config import EQUAL, ConfigError, TrainConfig, check_balance

Mode = Literal["single", "data_parallel", "distributed", "fully_sharded"]

# More gloo processes than this per core only wait for each other.
_MAX_PROCESSES_PER_CORE: Final = 8


@dataclass(frozen=True)
class ProcessPlacement:
    """The mode that will be used, and why if it differs from the requested one.

    `process_counts` has one entry per machine; None if a machine uses all of its GPUs, which only it can count.
    """

    mode: Mode
    process_counts: tuple[int | None, ...] = (1,)
    reasons: tuple[str, ...] = ()
    obstacle: str = ""  # why only one device is used


def choose_placement(
    config: TrainConfig, *, gpus: int, cores: int, require_multi_gpu: bool = False
) -> ProcessPlacement:
    """Choose mode and processes, given this machine's usable GPUs and cores. Raises ConfigError if impossible.

    The rule, for `training_mode`:
    - "single": one process on the first GPU, or on the CPU.
    - "data_parallel": one process on all GPUs; with fewer than two, "single".
    - "distributed", "fully_sharded": `world_size` processes, or one for each GPU. With one device that is "single",
      unless `world_size` is 1, which makes a group of one.
    - "auto": "distributed" if `enable_multi_gpu` is on, else "single". So without a GPU one process trains on the CPU
      (unless `world_size` asks for several), with one GPU one process on it, and with several one process on each.
    """
    wanted = _wanted_mode(config)
    if config.num_nodes > 1 and wanted in {"single", "data_parallel"}:
        raise ConfigError(
            f"num_nodes is {config.num_nodes}, but one process on one machine is configured",
            "Set num_nodes to 1, or turn on enable_multi_gpu (--multi_gpu) with training_mode=auto",
        )
    if wanted == "single":
        placement = ProcessPlacement("single", reasons=_unused_world_size(config))
    elif wanted == "data_parallel":
        placement = _data_parallel(gpus)
    else:
        placement = _distributed(config, wanted, gpus, cores)
        if None not in placement.process_counts:  # otherwise the ranks check it when they meet
            check_balance(config.balance, sum(filter(None, placement.process_counts)))
    if placement.mode in {"single", "data_parallel"} and config.balance != EQUAL:
        said = f"balance={config.balance} has no effect: there is one process, which takes every sample"
        placement = replace(placement, reasons=(*placement.reasons, said))
    if placement.mode != "single" and not config.enable_multi_gpu:
        said = f"enable_multi_gpu=false has no effect beside training_mode={wanted}: set that to auto for one process"
        placement = replace(placement, reasons=(*placement.reasons, said))
    if require_multi_gpu and placement.mode == "single":
        obstacle = placement.obstacle or f"training_mode={config.training_mode} uses one device"
        raise ConfigError(f"several GPUs are required (--require_multi_gpu), but {obstacle}")
    return placement


def gpus_needed(config: TrainConfig) -> int | None:
    """How many GPUs a run takes on this machine, if there are enough; None for all that it may use, or the CPU.

    Raises ConfigError as `choose_placement`.
    """
    wanted = _wanted_mode(config)
    if wanted == "data_parallel" or config.device == "cpu":
        return None
    return 1 if wanted == "single" else _process_counts(config)[config.node_rank]


def _wanted_mode(config: TrainConfig) -> Mode:
    if config.training_mode != "auto":
        return config.training_mode
    return "distributed" if config.enable_multi_gpu else "single"


def _unused_world_size(config: TrainConfig) -> tuple[str, ...]:
    if config.training_mode == "single" or config.world_size in {None, 1}:
        return ()
    return (f"world_size={config.world_size} has no effect: enable_multi_gpu is off (--multi_gpu turns it on)",)


def _data_parallel(gpus: int) -> ProcessPlacement:
    if gpus > 1:
        return ProcessPlacement("data_parallel")
    return _on_one_device(_found(gpus), "data_parallel needs two GPUs, but ")


def _distributed(config: TrainConfig, mode: Mode, gpus: int, cores: int) -> ProcessPlacement:
    counts = _process_counts(config)
    here = counts[config.node_rank]
    here = max(1, gpus) if here is None else here
    if here > (gpus or cores * _MAX_PROCESSES_PER_CORE):
        raise ConfigError(_too_many(config, here, gpus, cores))
    # An explicit request for one process makes a group of one, which is how distributed code is tried out.
    is_explicit = config.training_mode != "auto" and counts == (1,)
    if config.num_nodes == 1 and here == 1 and not is_explicit:
        return _single(config, gpus)
    return ProcessPlacement(mode, (*counts[: config.node_rank], here, *counts[config.node_rank + 1 :]))


def _process_counts(config: TrainConfig) -> tuple[int | None, ...]:
    """The configured number of processes per machine; None if left to the machine."""
    given = config.processes_per_node
    if given is not None:
        return given if len(given) == config.num_nodes else given * config.num_nodes
    if config.world_size is None:
        return (None,) * config.num_nodes
    per_node, rest = divmod(config.world_size, config.num_nodes)
    if rest or not per_node:
        raise ConfigError(
            f"world_size is {config.world_size}; it does not divide evenly by num_nodes={config.num_nodes}",
            "Set processes_per_node to the number of each machine, such as [2, 1], or leave world_size empty to use "
            "every GPU of every machine",
        )
    return (per_node,) * config.num_nodes


def _too_many(config: TrainConfig, here: int, gpus: int, cores: int) -> str:
    most = gpus or cores * _MAX_PROCESSES_PER_CORE
    limit = _found(gpus)
    if not gpus:
        limit = f"without a GPU, at most {_MAX_PROCESSES_PER_CORE} processes per core are useful"
    if config.processes_per_node is not None:
        name, where, on_all = "processes_per_node", f"machine {config.node_rank}", 1
    else:
        name, on_all = "world_size", config.num_nodes
        where = "this machine" if config.num_nodes == 1 else "each machine"
    value = config.world_size if name == "world_size" else list(config.processes_per_node or ())
    return f"{name} is {value}, which is {here} processes on {where}, but {limit}; use at most {most * on_all}"


def _single(config: TrainConfig, gpus: int) -> ProcessPlacement:
    if config.world_size == 1:
        return _on_one_device("world_size=1")
    if config.processes_per_node is not None:
        return _on_one_device("processes_per_node=[1]")
    advice = "" if gpus else " (world_size=2 would start two processes on the CPU)"
    return _on_one_device(_found(gpus), "several GPUs were requested, but ", advice)


def _on_one_device(obstacle: str, prefix: str = "", advice: str = "") -> ProcessPlacement:
    reason = f"{prefix}{obstacle}: training on one device{advice}"
    return ProcessPlacement("single", reasons=(reason,), obstacle=obstacle + advice)


def _found(gpus: int) -> str:
    return {0: "no GPU was found", 1: "one GPU was found"}.get(gpus, f"{gpus} GPUs were found")
