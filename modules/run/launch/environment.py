"""The environment variables of a run's processes: those Tandem sets, and those it leaves as the user set them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from modules.config import TrainConfig
from modules.machine import Gpu, can_map_memory, is_loopback_name, network_cards, route_to, route_to_master
from modules.run.launch.placement import ProcessPlacement

MULTI_PROCESS_MODES: Final = frozenset({"distributed", "fully_sharded"})
_LOOPBACK: Final = "127.0.0.1"
# Collectives that torch's flight recorder keeps per rank: a few hundred bytes each, read when a run hangs.
_FLIGHT_RECORDER_ENTRIES: Final = 2000
# torch reads all of them; the first is the name that is not deprecated.
_ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True)
class LaunchEnvironment:
    """`added` is set for the processes; `user_set` already had another value, which the user chose.

    `portable` is the part of `added` that is valid on every machine of the run.
    """

    added: Mapping[str, str] = field(default_factory=dict)
    user_set: Mapping[str, str] = field(default_factory=dict)
    portable: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Lines to print at startup."""
        parts = (("Environment variables set", self.added), ("Kept as you set them", self.user_set))
        return [f"{what}: {' '.join(f'{k}={v}' for k, v in named.items())}" for what, named in parts if named]


def build_launch_environment(
    config: TrainConfig,
    placement: ProcessPlacement,
    usable: Sequence[Gpu],
    *,
    cores: int,
    environment: Mapping[str, str],
    master_addr: str,
    log_dir: Path | None,
) -> LaunchEnvironment:
    """The variables for this machine's processes; `log_dir` is for debug logs, None without a run folder."""
    wanted = {
        # Without it CUDA counts the fastest GPU first, and its numbers are not those of nvidia-smi.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # A native crash then writes its Python stack to log/launcher.txt.
        "PYTHONFAULTHANDLER": "1",
    }
    if placement.mode in MULTI_PROCESS_MODES:
        wanted |= _group_variables(placement.process_counts[config.node_rank] or 1, cores)
        wanted |= _debug_variables(log_dir) if config.debug_distributed else {}
    here = wanted | _allocator(usable, environment)
    if placement.mode in MULTI_PROCESS_MODES:
        here |= network_interfaces(master_addr)
    if config.device_ids is not None and usable:
        chosen = usable[:1] if placement.mode == "single" else usable
        here["CUDA_VISIBLE_DEVICES"] = ",".join(_cuda_name(gpu, environment) for gpu in chosen)
        wanted["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in chosen)
    if "CUDA_VISIBLE_DEVICES" in environment:
        del here["CUDA_DEVICE_ORDER"]  # in another order the user's indices would mean other GPUs
    # device_ids selects among the GPUs that the user left visible, so it replaces that variable.
    added = {k: v for k, v in here.items() if k not in environment or k == "CUDA_VISIBLE_DEVICES"}
    user_set = {k: environment[k] for k, v in here.items() if k not in added and environment[k] != v}
    return LaunchEnvironment(added, user_set, wanted)


def restricted_to(gpus: Sequence[Gpu], visible: Sequence[Gpu], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a start sees only these of the GPUs that are `visible` in `environment`, in its order.

    The user's own words for them stay: in another order than nvidia-smi's, they may mean other GPUs than Tandem knows.
    """
    if (own := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        words = dict(zip(visible, own.split(","), strict=False))
        return {"CUDA_VISIBLE_DEVICES": ",".join(words[gpu].strip() for gpu in gpus)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(_cuda_name(gpu, {}) for gpu in gpus)}


def network_interfaces(master_addr: str) -> dict[str, str]:
    """Variables that select the network interface on the route to `master_addr` for gloo and NCCL; empty if unknown.

    By default gloo resolves this machine's own name, which may be the loopback or an address that is gone. NCCL looks
    for a card itself, and is left alone if there is only one. On one machine both listen on the loopback interface.
    """
    if sys.platform == "win32":  # where gloo takes addresses, not interface names
        return {}
    if is_loopback_name(master_addr):
        route = route_to(_LOOPBACK) if sys.platform == "linux" else None
        if route is None:
            return {}
        return {"GLOO_SOCKET_IFNAME": route.interface, "NCCL_SOCKET_IFNAME": f"={route.interface}"}
    route = route_to_master(master_addr)
    if route is None:
        return {}
    variables = {"GLOO_SOCKET_IFNAME": route.interface}
    if network_cards() != [route.interface]:
        # "=" because NCCL takes a plain name for the beginning of one: eth1 is also eth10. gloo takes exact names.
        variables["NCCL_SOCKET_IFNAME"] = f"={route.interface}"
    return variables


def set_network_interfaces(environment: MutableMapping[str, str], master_addr: str) -> None:
    """Set the interface variables that are missing; for a rank started by hand, without a LaunchPlan."""
    for name, value in network_interfaces(master_addr).items():
        environment.setdefault(name, value)


def set_allocator(environment: MutableMapping[str, str], gpus: Sequence[Gpu]) -> None:
    """Set what is missing for torch's allocator, before torch is imported; for a rank without a LaunchPlan."""
    for name, value in _allocator(gpus, environment).items():
        environment.setdefault(name, value)


def quieten_torch(environment: MutableMapping[str, str]) -> None:
    """For ranks whose error output a user reads, before torch is imported: its C++ code prints errors only.

    As warnings it prints a stack of each lost connection, whose cause Tandem reports. Under a supervisor they are in
    log/launcher.txt.
    """
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _allocator(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> dict[str, str]:
    """Segments of GPU memory that grow, instead of new ones beside gaps that are too small, as batches of several image
    sizes leave them. It has the name under which the user has set something, if so."""
    if not gpus or not can_map_memory(gpus):
        return {}
    name = next((name for name in _ALLOCATOR_NAMES if name in environment), _ALLOCATOR_NAMES[0])
    return {name: "expandable_segments:True"}


def _group_variables(processes: int, cores: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        "TORCH_FR_BUFFER_SIZE": str(_FLIGHT_RECORDER_ENTRIES),
    }


def _debug_variables(log_dir: Path | None) -> dict[str, str]:
    # Not DETAIL: with it DistributedDataParallel over gloo crashes with a segmentation fault (torch 2.13, one process
    # and one layer are enough). Mismatched collectives, which it would report, show up in the flight recorder.
    wanted = {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"}
    if log_dir is not None:
        # NCCL replaces %h with the host name and %p with the process ID.
        wanted["NCCL_DEBUG_FILE"] = str(log_dir.absolute() / "nccl-%h-%p.txt")
    return wanted


def _cuda_name(gpu: Gpu, environment: Mapping[str, str]) -> str:
    """The GPU's index, or its UUID if the user's variables give indices another meaning."""
    has_pci_order = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID"
    number = gpu.index if gpu.cuda_index is None else gpu.cuda_index
    return str(number) if has_pci_order and "CUDA_VISIBLE_DEVICES" not in environment else gpu.uuid
