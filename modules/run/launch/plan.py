"""Turns a config into a launch plan: processes, command lines and environment. Starts nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from modules import ROOT
from modules.config import ConfigError, TrainConfig
from modules.files import printable
from modules.machine import (
    Gpu,
    cpu_count,
    find_free_port,
    gpu_obstacle,
    installed_gpus,
    is_loopback_name,
    is_own_address,
    port_is_free,
    preferred_addresses,
    route_to_master,
    visible_gpus,
)
from modules.machine.ports import loopback_fault
from modules.run.folder.run_folder import RunFolder
from modules.run.join.join_token import with_token
from modules.run.launch.environment import MULTI_PROCESS_MODES, LaunchEnvironment, build_launch_environment
from modules.run.launch.placement import Mode, choose_placement
from modules.run.launch.rank_env import torchrun_options

Launcher = Literal["none", "spawn", "torchrun"]

TRAIN_SCRIPT: Final = ROOT / "scripts" / "train.py"
TORCHRUN: Final = ROOT / "scripts" / "torchrun.py"
# What to do if machines reach machine 0 over different networks: each has to reach all others, not only that one.
ONE_NETWORK: Final = (
    "every machine must reach every other in one network: start machine 0 with --set master_addr= and its address in "
    "that network. If there is none, connect the machines first"
)
Backend = Literal["nccl", "gloo"]
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LaunchPlan:
    """What to start for one config on every machine; `reasons` are sentences to print first.

    `process_counts` has one entry per machine; None if only that machine can count its GPUs.
    """

    mode: Mode
    launcher: Launcher
    process_counts: tuple[int | None, ...]
    node_rank: int
    backend: Backend
    master_addr: str
    port: int
    reasons: tuple[str, ...]
    script_argv: tuple[str, ...]
    max_restarts: int = 0  # by torchrun, of the processes of this machine
    startup_timeout_s: int = 1800
    variables: LaunchEnvironment = field(default_factory=LaunchEnvironment)
    is_elsewhere: bool = False  # this machine is to be number 0, and `master_addr` is not its address

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
        is_free: Callable[[int], bool] = port_is_free,
    ) -> LaunchPlan:
        """Plan the launch of `config`. Raises ConfigError if this machine cannot run it.

        `gpus`, `environment` and `cores` default to this machine's. Without a `run_folder` rank 0 creates one.
        `is_free` is asked for each port, and may reserve it.
        """
        environment = os.environ if environment is None else environment
        cores = cpu_count() if cores is None else cores
        usable, reasons = usable_gpus(config, gpus, environment)
        placement = choose_placement(config, gpus=len(usable), cores=cores, require_multi_gpu=require_multi_gpu)
        is_group = placement.mode in MULTI_PROCESS_MODES
        if is_group:
            check_loopback()
        backend, backend_reasons = choose_backend(config, usable) if is_group else ("gloo", ())
        port, port_reasons = choose_port(config, is_free) if is_group else (config.initial_port, ())
        master_addr, address_reasons = choose_address(config)
        is_elsewhere = config.num_nodes > 1 and config.node_rank == 0 and not is_own_address(master_addr)
        machine_reasons = (
            *address_reasons,
            *(_unused_variables(environment, master_addr, port) if is_group else ()),
            *((_other_address(master_addr),) if is_elsewhere else ()),
            *_unknown_world_size(placement.process_counts),
            *_reasons_of_machines(config),
        )
        return cls(
            mode=placement.mode,
            launcher=_choose_launcher(config) if is_group else "none",
            process_counts=placement.process_counts,
            node_rank=config.node_rank,
            backend=backend,
            master_addr=master_addr,
            port=port,
            reasons=(*reasons, *placement.reasons, *backend_reasons, *port_reasons, *machine_reasons),
            script_argv=_script_argv(config_path, run_folder, extra_args),
            max_restarts=0 if _restarts_machines(config) else config.max_restarts,
            startup_timeout_s=config.startup_timeout_s,
            variables=build_launch_environment(
                config,
                placement,
                usable,
                cores=cores,
                environment=environment,
                master_addr=master_addr,
                log_dir=None if run_folder is None else RunFolder(Path(run_folder)).log_dir,
            ),
            is_elsewhere=is_elsewhere,
        )

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return len(self.process_counts)

    @property
    def world_size(self) -> int | None:
        """Processes on all machines together; None until all machines have counted their GPUs."""
        known = [count for count in self.process_counts if count is not None]
        return sum(known) if len(known) == self.num_nodes else None

    @property
    def processes_here(self) -> int:
        """Processes on this machine."""
        return self.process_counts[self.node_rank] or 1

    def ranks(self, node_rank: int | None = None) -> range:
        """The ranks on a machine (default: this one). Raises ValueError while an earlier machine's count is unknown."""
        node_rank = self.node_rank if node_rank is None else node_rank
        before, here = self.process_counts[:node_rank], self.process_counts[node_rank]
        if here is None or None in before:
            raise ValueError(f"the ranks of machine {node_rank} are known only once all machines have joined")
        first = sum(count or 0 for count in before)
        return range(first, first + here)

    def environment(self, node_rank: int | None = None) -> dict[str, str]:
        """The variables to set for the processes; for another machine only the portable ones."""
        is_here = node_rank in {None, self.node_rank}
        return dict(self.variables.added if is_here else self.variables.portable)

    def argv(self, node_rank: int | None = None) -> list[str]:
        """The command for a machine (default: this one): torchrun, or the script itself without a launcher."""
        if self.launcher == "none":
            return [sys.executable, *self.script_argv]
        if self.launcher == "spawn":
            group = ["--spawn", str(self.processes_here), "--port", str(self.port)]
            return [sys.executable, *self.script_argv, *group]
        node_rank = self.node_rank if node_rank is None else node_rank
        count = self.process_counts[node_rank]
        # "gpu" is torchrun's value for all GPUs of its machine; without GPUs each machine has one process.
        all_devices = "gpu" if self.backend == "nccl" else "1"
        torchrun = [f"--nnodes={self.num_nodes}", f"--nproc_per_node={all_devices if count is None else count}"]
        if self.max_restarts:
            torchrun.append(f"--max-restarts={self.max_restarts}")
        torchrun += self._rendezvous_options(node_rank)
        return [sys.executable, str(TORCHRUN), *torchrun, *self.script_argv]

    def command_line(self, node_rank: int | None = None) -> str:
        """`argv` with `environment` as one line for a shell of this operating system, to be run on the machine of that
        number, which is this one unless `is_elsewhere`."""
        argv = self.argv(node_rank)
        variables = self.variables.portable if self.is_elsewhere else self.environment(node_rank)
        if sys.platform == "win32":
            return "".join(f'set "{k}={v}" && ' for k, v in variables.items()) + subprocess.list2cmdline(argv)
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(argv)])

    def join_line(self, port: int, token: str) -> str:
        """The command to run, in Tandem's folder, on each machine that joins this run at `port`."""
        return with_token(shlex.join([*elsewhere(TRAIN_SCRIPT), "--join", self.join_address(port)]), token)

    def join_address(self, port: int) -> str:
        """What --join is given on the other machines."""
        return f"{_bracket_ipv6(self.master_addr)}:{port}"

    def _rendezvous_options(self, node_rank: int) -> list[str]:
        parts = [f"--master_addr={_bracket_ipv6(self.master_addr)}", f"--master_port={self.port}"]
        if self.num_nodes == 1:
            return parts
        # Machines are rarely started in the same minute; torchrun gives up after ten by default.
        return [f"--node_rank={node_rank}", f"--rdzv_conf=timeout={self.startup_timeout_s}", *parts]


def taking_part(config: TrainConfig, counts: Sequence[int], number: int = 0) -> TrainConfig:
    """The config of the start in which each machine has one of `counts` processes, and takes no part with 0, for the
    machine `number`, which does."""
    present = tuple(count for count in counts if count)
    shared = {"processes_per_node": present, "world_size": None, "node_rank": len([*filter(None, counts[:number])])}
    if len(present) == len(counts):
        return config.model_copy(update=shared)
    # alone, a machine is supervised as one of several
    of_one = {"on_machine_loss": "end", "max_restarts": 0} if len(present) == 1 else {}
    return config.model_copy(update={**shared, **of_one, "num_nodes": len(present)})


def elsewhere(script: Path) -> list[str]:
    """The start of a command that runs one of Tandem's scripts on another machine, in Tandem's folder there."""
    python, environment, usual = Path(sys.executable), Path(sys.prefix), ROOT / ".venv"
    if python.is_relative_to(environment) and usual.is_dir() and usual.samefile(environment):  # it may be a link
        python = usual / python.relative_to(environment)
    # Tandem's folder differs between machines, but not the path of .venv in it.
    own = python.relative_to(ROOT).as_posix() if python.is_relative_to(ROOT) else "python"
    return [own, script.relative_to(ROOT).as_posix()]


def _unknown_world_size(counts: tuple[int | None, ...]) -> tuple[str, ...]:
    if None not in counts:
        return ()
    return (
        "each machine uses all of its GPUs, so the number of processes is known only once all machines have joined",
    )


def _restarts_machines(config: TrainConfig) -> bool:
    """Whether machine 0's join server starts machines again after a failure, so that torchrun must not."""
    return config.on_machine_loss != "end" and config.num_nodes > 1


def _reasons_of_machines(config: TrainConfig) -> tuple[str, ...]:
    """What settings for several machines do, or that they do nothing."""
    if config.num_nodes == 1:
        given = {
            "on_machine_loss": config.on_machine_loss,
            "fsdp_replicate": config.fsdp_replicate,
            "local_steps": config.local_steps,
        }
        used = {name: value for name, value in given.items() if value not in ("end", "none", None)}
        return tuple(f"{name}={value} has no effect: num_nodes is 1" for name, value in used.items())
    if config.on_machine_loss == "end" or config.node_rank > 0:
        return ()
    return (
        f"on_machine_loss={config.on_machine_loss}: Tandem starts the machines that join with machine 0's line, or "
        "over ssh, again. torchrun by hand starts no machine again: its c10d rendezvous, which runs code that anybody "
        "sends to its port, is not used",
    )


def _choose_launcher(config: TrainConfig) -> Launcher:
    if sys.platform == "win32":
        return _spawn_on_windows(config)
    if config.use_torchrun:
        return "torchrun"
    if config.num_nodes > 1:
        raise ConfigError(
            f"use_torchrun is off, but num_nodes is {config.num_nodes}",
            "Several machines need torchrun: turn use_torchrun on",
        )
    if config.max_restarts:
        raise ConfigError(
            f"use_torchrun is off, but max_restarts is {config.max_restarts}",
            "Only torchrun restarts processes: turn use_torchrun on",
        )
    return "spawn"


def _spawn_on_windows(config: TrainConfig) -> Launcher:
    """torchrun's store always asks for libuv, which PyTorch's builds for Windows do not have."""
    needs = {
        f"num_nodes is {config.num_nodes}": config.num_nodes > 1,
        f"max_restarts is {config.max_restarts}": config.max_restarts > 0,
    }
    for setting, is_needed in needs.items():
        if is_needed:
            raise ConfigError(
                f"{setting}, which needs torchrun, and torchrun does not work on Windows",
                "Train on this machine alone and without restarts, or use Linux (on Windows: WSL2)",
            )
    return "spawn"


def _script_argv(config_path: str | Path, run_folder: str | Path | None, extra_args: Sequence[str]) -> tuple[str, ...]:
    folder = () if run_folder is None else ("--run_folder", str(run_folder))
    return (str(TRAIN_SCRIPT), "--config", str(config_path), *folder, *extra_args)


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


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
    others = f" (--join takes its other addresses, too: {', '.join(own[1:])})" if own[1:] else ""
    connect = f"the other machines will connect to {own[0]}{others}"
    is_set = config.master_addr != TrainConfig.model_fields["master_addr"].default
    return own[0], (f"{useless}: {connect}" if is_set else f"{connect}; set master_addr to change that",)


def _unused_variables(environment: Mapping[str, str], master_addr: str, port: int) -> Iterator[str]:
    """What is set for torchrun or a program that starts no processes itself."""
    for name, used, setting in (("MASTER_ADDR", master_addr, "master_addr"), ("MASTER_PORT", port, "initial_port")):
        if environment.get(name, "") not in ("", str(used)):
            yield (
                f"{name}={printable(environment[name])} in the environment has no effect, since Tandem starts the "
                f"processes; {setting} is {used}"
            )
    if options := torchrun_options(environment):
        yield (
            f"{', '.join(options)} in the environment {'has' if len(options) == 1 else 'have'} no effect, since Tandem "
            "starts the processes; torchrun scripts/train.py, started by yourself, reads them"
        )


def _other_address(master_addr: str) -> str:
    return (
        f"master_addr is {master_addr}, which is no address of this machine ({', '.join(preferred_addresses())}): "
        "machine 0 must be the one that the others reach there"
    )


def where_joined(config: TrainConfig, master_addr: str, joined_at: Mapping[str, str]) -> tuple[TrainConfig, str]:
    """The config of machine 0 with the address at which the others have joined, and a note if that is not
    `master_addr`: the network of the default route may be one that only this machine is in, such as a VPN. An address
    that the user has set stays. `joined_at`: this machine's address by the name of each other machine."""
    route = route_to_master(master_addr)
    own = {master_addr, "" if route is None else route.address}
    found = {name: at for name, at in joined_at.items() if at and not is_loopback_name(at) and "%" not in at}
    addresses = sorted(set(found.values()))
    if own.issuperset(addresses):
        return config, ""
    if len(addresses) > 1:
        places = ", ".join(f"{name} at {address}" for name, address in found.items())
        return config, (
            f"master_addr is {master_addr}, but the others have joined at different addresses of this machine: "
            f"{places}. If no group forms, {ONE_NETWORK}"
        )
    if is_loopback_name(config.master_addr):
        return (
            config.model_copy(update={"master_addr": addresses[0]}),
            f"all machines meet at {addresses[0]}, where the others have joined, instead of at {master_addr}",
        )
    return config, (
        f"master_addr is {master_addr}, but the others have joined at {addresses[0]}: if the processes cannot form a "
        f"group, start again here with --set master_addr={addresses[0]}"
    )


def check_loopback() -> None:
    """Raise ConfigError if the processes of this machine could not reach each other: they would wait without a word."""
    if fault := loopback_fault():
        raise ConfigError(
            f"the processes of this machine cannot reach each other at {_LOOPBACK}: {fault}",
            "Turn the loopback interface on (as root: ip link set lo up), allow it in the firewall, or train on one "
            "device without --multi_gpu.",
        )
