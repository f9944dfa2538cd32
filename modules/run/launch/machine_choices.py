"""What a launch plan takes from this machine: its usable GPUs, the backend, the port, and machine 0's address."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from modules.config import ConfigError, TrainConfig
from modules.machine import (
    Gpu,
    find_free_port,
    gpu_obstacle,
    installed_gpus,
    is_loopback_name,
    preferred_addresses,
    visible_gpus,
)
from modules.machine.ports import loopback_fault

Backend = Literal["nccl", "gloo"]

_LOOPBACK = "127.0.0.1"


def usable_gpus(
    config: TrainConfig, given: Sequence[Gpu] | None, environment: Mapping[str, str]
) -> tuple[list[Gpu], tuple[str, ...]]:
    """The GPUs that this run may use, in order, and why if GPUs of this machine are not among them."""
    if config.device == "cpu":
        return [], ()
    if given is None and (obstacle := gpu_obstacle(environment)) is not None:
        raise ConfigError(obstacle.message, obstacle.advice)
    gpus = visible_gpus(environment) if given is None else list(given)
    unreadable = [gpu for gpu in installed_gpus() if gpu.fault] if given is None else []
    reasons = tuple(f"GPU {gpu.index} is not used: its driver reports {gpu.fault!r}" for gpu in unreadable)
    if config.device_ids is None:
        return gpus, reasons
    present = {gpu.index: gpu for gpu in gpus}
    missing = [index for index in config.device_ids if index not in present]
    if missing:
        allowed = f"choose from {', '.join(map(str, present))}" if present else "no GPU is visible"
        advice = "Leave it empty to use all GPUs"
        raise ConfigError(f"device_ids names GPU {missing[0]}: {allowed}", advice)
    # all slices of a GPU that is divided (MIG), if these are what is visible
    return [gpu for index in config.device_ids for gpu in gpus if gpu.index == index], reasons


def choose_backend(config: TrainConfig, gpus: Sequence[Gpu]) -> tuple[Backend, tuple[str, ...]]:
    if config.distributed_backend == "gloo":
        return "gloo", ()
    if sys.platform in {"win32", "darwin"}:
        return "gloo", ("backend gloo instead of nccl: NCCL is available only on Linux",)
    if not gpus:
        return "gloo", ("backend gloo instead of nccl: NCCL needs a CUDA GPU, and none is usable",)
    if len({gpu.index for gpu in gpus}) < len(gpus):
        reason = (
            "several processes train on slices (MIG) of one GPU, which NCCL may refuse: set distributed_backend=gloo"
        )
        return "nccl", (reason,)
    return "nccl", ()


def choose_port(config: TrainConfig, is_free: Callable[[int], bool]) -> tuple[int, tuple[str, ...]]:
    """The rendezvous port; only machine 0 can know whether it is free."""
    wanted = config.initial_port
    if config.node_rank != 0 or is_free(wanted):
        return wanted, ()
    try:
        port = find_free_port(wanted + 1, is_free)
    except OSError as error:
        raise ConfigError(f"initial_port is {wanted}, which is in use, and there is {error}") from error
    return port, (f"port {port} instead of {wanted}, which is in use",)


def choose_address(config: TrainConfig) -> tuple[str, tuple[str, ...]]:
    """The address of machine 0. Machine 0 can determine it; any other machine must be given it."""
    if config.num_nodes == 1:
        return _LOOPBACK, ()
    if not is_loopback_name(config.master_addr):
        return config.master_addr, ()
    own = preferred_addresses() if config.node_rank == 0 else []
    useless = f"master_addr is {config.master_addr}, which only this machine can reach"
    if not own:
        return config.master_addr, (useless,)
    others = f" (its other addresses: {', '.join(own[1:])})" if own[1:] else ""
    connect = f"the other machines will connect to {own[0]}{others}"
    is_set = config.master_addr != TrainConfig.model_fields["master_addr"].default
    return own[0], (f"{useless}: {connect}" if is_set else f"{connect}; set master_addr to change that",)


def check_loopback() -> None:
    """Raise ConfigError if the processes of this machine could not reach each other: they would wait without a word."""
    if fault := loopback_fault():
        raise ConfigError(
            f"the processes of this machine cannot reach each other at {_LOOPBACK}: {fault}",
            "Turn the loopback interface on (as root: ip link set lo up), allow it in the firewall, or train on one "
            "device without --multi_gpu.",
        )
