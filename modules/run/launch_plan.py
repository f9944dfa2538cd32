"""From a config to what must be started: processes, command lines and environment; starts nothing itself."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from modules.config import ConfigError, TrainConfig
from modules.machine import Gpu, cpu_count, find_free_port, port_is_free, torch_version, visible_gpus
from modules.run.placement import Mode, Placement, place
from modules.run.run_folder import CONFIG_FILE_NAME

Backend = Literal["nccl", "gloo"]
Launcher = Literal["none", "spawn", "torchrun"]

TRAIN_SCRIPT: Final = Path(__file__).resolve().parents[2] / "scripts" / "train.py"
TORCHRUN_MODULE: Final = "torch.distributed.run"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LaunchPlan:
    """What to start for one config on one node; `reasons` are sentences to print before it is started."""

    mode: Mode
    launcher: Launcher
    processes_per_node: int
    num_nodes: int
    node_rank: int
    backend: Backend
    master_addr: str
    port: int
    reasons: tuple[str, ...]
    script_argv: tuple[str, ...]
    startup_timeout_s: int = 1800
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        *,
        config_path: str | Path,
        extra_args: Sequence[str] = (),
        run_folder: str | Path | None = None,
        gpus: Sequence[Gpu] | None = None,
        require_multi_gpu: bool = False,
        environment: Mapping[str, str] | None = None,
        cores: int | None = None,
    ) -> LaunchPlan:
        """Plan the start of `config`; raises ConfigError where this machine cannot do what it asks.

        `gpus`, `environment` and `cores` are this machine's unless given. `run_folder` None means the folder
        of `config_path` when that is a run's own config.json, and no run folder otherwise.
        """
        environment = os.environ if environment is None else environment
        cores = cpu_count() if cores is None else cores
        usable, reasons = _usable_gpus(config, gpus, environment)
        placement = place(config, gpus=len(usable), cores=cores, require_multi_gpu=require_multi_gpu)
        is_group = placement.mode in {"distributed", "fully_sharded"}
        backend, backend_reasons = _choose_backend(config, len(usable)) if is_group else ("gloo", ())
        port, port_reasons = _choose_port(config, port_is_free) if is_group else (config.initial_port, ())
        config_path = Path(config_path)
        if run_folder is None and config_path.name == CONFIG_FILE_NAME:
            run_folder = config_path.parent
        return cls(
            mode=placement.mode,
            launcher=_choose_launcher(config) if is_group else "none",
            processes_per_node=placement.processes_per_node,
            num_nodes=placement.num_nodes,
            node_rank=config.node_rank if placement.num_nodes > 1 else 0,
            backend=backend,
            master_addr=_LOOPBACK if placement.num_nodes == 1 else config.master_addr,
            port=port,
            reasons=(*reasons, *placement.reasons, *backend_reasons, *port_reasons, *_lonely_master(config)),
            script_argv=_script_argv(config_path, run_folder, extra_args),
            startup_timeout_s=config.startup_timeout_s,
            variables=_variables(config, placement, usable, cores, environment),
        )

    @property
    def world_size(self) -> int:
        """Processes on all nodes together."""
        return self.processes_per_node * self.num_nodes

    def ranks(self, node_rank: int | None = None) -> range:
        """The ranks that run on a node (default: this one)."""
        first = (self.node_rank if node_rank is None else node_rank) * self.processes_per_node
        return range(first, first + self.processes_per_node)

    def environment(self) -> dict[str, str]:
        """The variables to set for the processes; of the user's own only a narrower choice of GPUs."""
        return dict(self.variables)

    def argv(self, node_rank: int | None = None) -> list[str]:
        """The command for a node (default: this one): torchrun, or just the script without a launcher."""
        if self.launcher == "none":
            return [sys.executable, *self.script_argv]
        if self.launcher == "spawn":
            group = ["--spawn", str(self.processes_per_node), "--port", str(self.port)]
            return [sys.executable, *self.script_argv, *group]
        rendezvous = [f"--nnodes={self.num_nodes}", f"--nproc_per_node={self.processes_per_node}"]
        if self.num_nodes > 1:
            # Machines are rarely started in the same minute; torchrun itself would give up after ten.
            rendezvous += [
                f"--node_rank={self.node_rank if node_rank is None else node_rank}",
                f"--rdzv_conf=timeout={self.startup_timeout_s}",
            ]
        rendezvous += [f"--master_addr={self.master_addr}", f"--master_port={self.port}"]
        return [sys.executable, "-m", TORCHRUN_MODULE, *rendezvous, *self.script_argv]

    def command_line(self, node_rank: int | None = None) -> str:
        """`argv` as one line to paste into a shell of this operating system."""
        argv = self.argv(node_rank)
        return subprocess.list2cmdline(argv) if sys.platform == "win32" else shlex.join(argv)


def _usable_gpus(
    config: TrainConfig, given: Sequence[Gpu] | None, environment: Mapping[str, str]
) -> tuple[list[Gpu], tuple[str, ...]]:
    """The GPUs that this run may use, in order, and why there are fewer than one would think."""
    gpus = visible_gpus(environment) if given is None else list(given)
    version = torch_version()
    if given is None and gpus and version is not None and version.endswith("+cpu"):
        reason = f"PyTorch {version} is built without CUDA, so the GPUs stay unused: install its CUDA build"
        return [], (reason,)
    if config.device_ids is None:
        return gpus, ()
    present = {gpu.index: gpu for gpu in gpus}
    missing = [index for index in config.device_ids if index not in present]
    if missing:
        allowed = f"use some of {', '.join(map(str, present))}" if present else "no GPU is visible"
        advice = "Leave it empty to use what is there"
        raise ConfigError(f"device_ids names GPU {missing[0]}: {allowed}", advice)
    return [present[index] for index in config.device_ids], ()


def _choose_backend(config: TrainConfig, gpus: int) -> tuple[Backend, tuple[str, ...]]:
    if config.distributed_backend == "gloo":
        return "gloo", ()
    if sys.platform in {"win32", "darwin"}:
        return "gloo", ("backend gloo instead of nccl: NCCL exists only for Linux",)
    if not gpus:
        return "gloo", ("backend gloo instead of nccl: NCCL needs a CUDA GPU and none can be used",)
    return "nccl", ()


def _choose_port(config: TrainConfig, is_free: Callable[[int], bool]) -> tuple[int, tuple[str, ...]]:
    """The port of the rendezvous; only the master's own machine can know whether it is free."""
    wanted = config.initial_port
    if config.node_rank != 0 or is_free(wanted):
        return wanted, ()
    if config.num_nodes > 1:
        raise ConfigError(
            f"initial_port is {wanted}, which is in use on this machine",
            "Set the same other port on every machine, or end the program that uses it",
        )
    try:
        port = find_free_port(wanted + 1)
    except OSError as error:
        raise ConfigError(f"initial_port is {wanted}, which is in use, and there is {error}") from error
    return port, (f"port {port} instead of {wanted}, which is in use",)


def _lonely_master(config: TrainConfig) -> tuple[str, ...]:
    if config.num_nodes == 1 or config.master_addr not in {"localhost", _LOOPBACK}:
        return ()
    return (f"master_addr is {config.master_addr}, which only processes on this machine can reach",)


def _choose_launcher(config: TrainConfig) -> Launcher:
    if config.use_torchrun:
        return "torchrun"
    if config.num_nodes > 1:
        raise ConfigError(
            f"use_torchrun is off, but num_nodes is {config.num_nodes}",
            "Several machines are started with torchrun: turn use_torchrun on",
        )
    return "spawn"


def _script_argv(config_path: Path, run_folder: str | Path | None, extra_args: Sequence[str]) -> tuple[str, ...]:
    folder = () if run_folder is None else ("--run_folder", str(run_folder))
    return (str(TRAIN_SCRIPT), "--config", str(config_path), *folder, *extra_args)


def _variables(
    config: TrainConfig,
    placement: Placement,
    usable: Sequence[Gpu],
    cores: int,
    environment: Mapping[str, str],
) -> dict[str, str]:
    wanted: dict[str, str] = {}
    if "CUDA_VISIBLE_DEVICES" not in environment:
        # Without it CUDA counts the fastest GPU first, and its numbers are not those of nvidia-smi.
        wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if placement.mode in {"distributed", "fully_sharded"}:
        wanted["OMP_NUM_THREADS"] = str(max(1, cores // placement.processes_per_node))
        if sys.platform == "win32":
            # PyTorch's Windows builds lack libuv, which its store wants by default.
            wanted["USE_LIBUV"] = "0"
        if placement.num_nodes == 1 and sys.platform == "linux" and _has_loopback():
            # A laptop's own host name may resolve to an address of a network that is gone.
            wanted["GLOO_SOCKET_IFNAME"] = "lo"
    # A native crash then leaves its Python stack in log/launcher.txt.
    wanted["PYTHONFAULTHANDLER"] = "1"
    missing = {name: value for name, value in wanted.items() if name not in environment}
    if config.device_ids is not None and usable:
        chosen = usable[:1] if placement.mode == "single" else usable
        missing["CUDA_VISIBLE_DEVICES"] = ",".join(_cuda_name(gpu, environment) for gpu in chosen)
    return missing


def _cuda_name(gpu: Gpu, environment: Mapping[str, str]) -> str:
    """The GPU's number, or its uuid where the user set an order in which numbers mean something else."""
    is_numbered = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID"
    return str(gpu.index) if is_numbered and "CUDA_VISIBLE_DEVICES" not in environment else gpu.uuid


def _has_loopback() -> bool:
    return any(name == "lo" for _, name in socket.if_nameindex())
