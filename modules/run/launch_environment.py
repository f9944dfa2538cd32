"""The environment variables of a run's processes: which Tandem sets, and which it leaves as the user has set them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from modules.config import TrainConfig
from modules.machine import Gpu, Route, is_loopback_name, route_of_group, route_to
from modules.run.placement import Placement

GROUP_MODES: Final = frozenset({"distributed", "fully_sharded"})
_LOOPBACK: Final = "127.0.0.1"
_NETWORK_CARDS: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Collectives that torch's flight recorder keeps for each rank: a few hundred bytes each, read when a run hangs.
_RECORDED_COLLECTIVES: Final = 2000


@dataclass(frozen=True)
class LaunchEnvironment:
    """`added` is set for the processes, `kept` is what the user had set before and Tandem would have set otherwise.

    `everywhere` is the part of `added` that is right on every machine of the run.
    """

    added: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    everywhere: Mapping[str, str] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        """What to print at the start."""
        parts = (("Set for the processes", self.added), ("Kept as you have set it", self.kept))
        return [f"{what}: {' '.join(f'{k}={v}' for k, v in named.items())}" for what, named in parts if named]


def launch_environment(
    config: TrainConfig,
    placement: Placement,
    usable: Sequence[Gpu],
    *,
    cores: int,
    environment: Mapping[str, str],
    master_addr: str,
    log_dir: Path | None,
) -> LaunchEnvironment:
    """The variables for this machine's part of a run; `log_dir` is where debug logs go, if there is a run folder."""
    wanted = {
        # Without it CUDA counts the fastest GPU first, and its numbers are not those of nvidia-smi.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # A native crash then leaves its Python stack in log/launcher.txt.
        "PYTHONFAULTHANDLER": "1",
    }
    if placement.mode in GROUP_MODES:
        wanted |= _of_a_group(config, placement.process_counts[config.node_rank] or 1, cores)
        wanted |= _debugging(log_dir) if config.debug_distributed else {}
    here = dict(wanted)
    if placement.mode in GROUP_MODES:
        here |= network_cards(master_addr)
    if config.device_ids is not None and usable:
        chosen = usable[:1] if placement.mode == "single" else usable
        here["CUDA_VISIBLE_DEVICES"] = ",".join(_cuda_name(gpu, environment) for gpu in chosen)
        wanted["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in chosen)
    if "CUDA_VISIBLE_DEVICES" in environment:
        del here["CUDA_DEVICE_ORDER"]  # in another order the user's numbers would mean other GPUs
    # A choice by device_ids is one among the GPUs that the user left visible, so it replaces that variable.
    added = {k: v for k, v in here.items() if k not in environment or k == "CUDA_VISIBLE_DEVICES"}
    kept = {k: environment[k] for k, v in here.items() if k not in added and environment[k] != v}
    return LaunchEnvironment(added, kept, wanted)


def network_cards(master_addr: str) -> dict[str, str]:
    """Which network card gloo and NCCL are to use in a group whose rank 0 is at `master_addr`; empty if unknown.

    Left alone, gloo looks up this machine's own name, which may stand for the loopback or for a network that is gone.
    """
    if sys.platform == "win32":  # where gloo asks for addresses and knows no names of cards
        return {}
    if is_loopback_name(master_addr):
        route = route_to(_LOOPBACK) if sys.platform == "linux" else None
        return {} if route is None else {"GLOO_SOCKET_IFNAME": route.interface}
    return _named(route_of_group(master_addr))


def add_network_cards(environment: MutableMapping[str, str], master_addr: str) -> None:
    """The same for a rank that was started by hand, where nobody planned: sets what is not set."""
    for name, value in network_cards(master_addr).items():
        environment.setdefault(name, value)


def _named(route: Route | None) -> dict[str, str]:
    return {} if route is None else dict.fromkeys(_NETWORK_CARDS, route.interface)


def _of_a_group(config: TrainConfig, processes: int, cores: int) -> dict[str, str]:
    wanted = {
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        "TORCH_FR_BUFFER_SIZE": str(_RECORDED_COLLECTIVES),
    }
    if sys.platform == "win32":
        # PyTorch's Windows builds lack libuv, which its store wants by default.
        wanted["USE_LIBUV"] = "0"
    if config.rendezvous == "elastic":
        # torchrun would lend its own store to the ranks, where a restarted group finds the keys of the one before.
        wanted["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return wanted


def _debugging(log_dir: Path | None) -> dict[str, str]:
    # Not DETAIL: with it DistributedDataParallel over gloo ends in a segmentation fault (torch 2.13, one process and
    # one layer are enough). What it would add, mismatched collectives, the flight recorder shows as well.
    wanted = {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"}
    if log_dir is not None:
        # NCCL itself replaces %h by the host's name and %p by the process's number.
        wanted["NCCL_DEBUG_FILE"] = str(log_dir.absolute() / "nccl-%h-%p.txt")
    return wanted


def _cuda_name(gpu: Gpu, environment: Mapping[str, str]) -> str:
    """The GPU's number, or its uuid where the user set an order in which numbers mean something else."""
    is_numbered = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID"
    return str(gpu.index) if is_numbered and "CUDA_VISIBLE_DEVICES" not in environment else gpu.uuid
