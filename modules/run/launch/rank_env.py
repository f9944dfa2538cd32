"""Rank, world size and master address of this process, from the environment set by torchrun, srun, mpirun or spawn."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

import psutil

from modules.config import ConfigError, TrainConfig
from modules.run.launch.slurm_environment import (
    local_rank_of_step,
    master_of_step,
    number,
    port_of_job,
    started_by_srun,
    tasks_of_step,
)

_TORCHRUN: Final = "TORCHELASTIC_RUN_ID"  # torchrun alone sets it
_MPI: Final = {  # the variable of the rank: that of the number of processes
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",  # Open MPI, IBM's jsrun
    "PMI_RANK": "PMI_SIZE",  # MPICH, Intel MPI, Cray's PALS
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",  # MVAPICH
}
_MPI_LOCAL_RANK: Final = (
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    "MV2_COMM_WORLD_LOCAL_RANK",
)
_MPI_LOCAL_SIZE: Final = (
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
_RANK_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", *_MPI)
_OWN_TORCHRUN_OPTIONS: Final = ("PET_LOG_DIR",)  # which concern no other process
_LAUNCHERS = "torchrun and srun set these variables; without a launcher, unset RANK, WORLD_SIZE and SLURM_PROCID"
_PORT = "Set the same free port on every machine, such as 29500"


@dataclass(frozen=True)
class RankEnv:
    """One process of the group: its rank, its local rank, and where rank 0 listens."""

    rank: int
    local_rank: int
    world_size: int
    master_addr: str
    master_port: int

    def environment(self) -> dict[str, str]:
        """The variables of torch's env:// rendezvous for this process."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def read_rank_env(environ: Mapping[str, str], default_port: int = 12355) -> RankEnv | None:
    """The rank environment of this process, or None if no launcher started it.

    torchrun sets RANK, LOCAL_RANK and WORLD_SIZE. srun sets SLURM_PROCID, SLURM_LOCALID and SLURM_STEP_NUM_TASKS;
    MASTER_ADDR and MASTER_PORT are respected there and derived if missing. mpirun sets those of `_MPI`.
    Raises ConfigError if a variable is not a number or out of range.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _validated(
            RankEnv(
                rank=_number(environ, "RANK"),
                local_rank=_number(environ, "LOCAL_RANK", environ["RANK"]),
                world_size=_number(environ, "WORLD_SIZE"),
                master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
                master_port=_number(environ, "MASTER_PORT", str(default_port)),
            )
        )
    if (rank_variable := _mpi_rank_variable(environ)) is not None:
        return _validated(_rank_of_mpirun(environ, rank_variable, default_port))
    if started_by_srun(environ):
        port = port_of_job(environ, default_port)
        return _validated(
            RankEnv(
                rank=_number(environ, "SLURM_PROCID"),
                local_rank=local_rank_of_step(environ),
                world_size=tasks_of_step(environ),
                master_addr=environ.get("MASTER_ADDR") or master_of_step(environ),
                master_port=_number(environ, "MASTER_PORT", str(port)),
            )
        )
    for given, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if given in environ:
            raise ConfigError(f"{given} is set in the environment ({environ[given]}), but {missing} is not", _LAUNCHERS)
    return None


def _mpi_rank_variable(environ: Mapping[str, str]) -> str | None:
    """The variable in which mpirun has set this process's rank; None if it has not started several.

    Under Slurm mpirun starts a task on each node and the processes from there. srun itself sets PMI_RANK as well.
    """
    for rank, size in _MPI.items():
        if rank in environ and (processes := _number(environ, size, "1")) > 1:
            is_slurms = started_by_srun(environ) and tasks_of_step(environ) == processes
            return None if is_slurms and environ["SLURM_PROCID"] == environ[rank] else rank
    return None


def _rank_of_mpirun(environ: Mapping[str, str], rank_variable: str, default_port: int) -> RankEnv:
    rank, size = rank_variable, _MPI[rank_variable]
    local_rank = next((name for name in _MPI_LOCAL_RANK if name in environ), rank)
    local_size = next((name for name in _MPI_LOCAL_SIZE if name in environ), size)
    if "MASTER_ADDR" not in environ and environ[local_size] != environ[size]:
        raise ConfigError(
            f"{size}={environ[size]} and {local_size}={environ[local_size]}: mpirun has started processes on several "
            "machines, but MASTER_ADDR does not name the first",
            "mpirun -x MASTER_ADDR=ADDRESS (Open MPI), mpiexec -genv MASTER_ADDR ADDRESS (MPICH, Intel MPI)",
        )
    return RankEnv(
        rank=_number(environ, rank),
        local_rank=_number(environ, local_rank),
        world_size=_number(environ, size),
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_number(environ, "MASTER_PORT", str(default_port)),
    )


def launched_rank_env(environ: Mapping[str, str], default_port: int = 12355) -> RankEnv | None:
    """As `read_rank_env`, for a program that starts processes itself.

    RANK=0 and WORLD_SIZE=1 without torchrun are no group, but what a pod of one replica or a notebook has in its
    environment, whatever the program is asked to start.
    """
    rank_env = read_rank_env(environ, default_port)
    return None if rank_env is not None and rank_env.world_size == 1 and _TORCHRUN not in environ else rank_env


def refuse_rank(environ: Mapping[str, str], program: str) -> None:
    """Raises ConfigError if this process is a rank, since `program` starts processes itself."""
    if launched_rank_env(environ) is not None:
        raise ConfigError(
            f"{program} starts processes of its own, and this one is of a group of torchrun or srun",
            "Start it without them, or unset RANK and WORLD_SIZE (in a step of srun, SLURM_PROCID)",
        )


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would make the processes started with it ranks of another group."""
    left_out = {*_RANK_VARIABLES, *torchrun_options(environ)}
    return {name: value for name, value in environ.items() if name not in left_out}


def torchrun_options(environ: Mapping[str, str]) -> list[str]:
    """The variables from which torchrun takes options, as a PyTorchJob sets them: the rendezvous of another group."""
    return sorted(name for name in environ if name.startswith("PET_") and name not in _OWN_TORCHRUN_OPTIONS)


def use_own_slice(environ: MutableMapping[str, str], rank_env: RankEnv) -> None:
    """Of several GPUs in CUDA_VISIBLE_DEVICES some of which are slices (MIG), leave this rank its own.

    CUDA shows a process one slice only, the first, on which all ranks would train. To be called before torch is asked
    for a GPU.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if any(entry.strip().startswith("MIG-") for entry in visible):
        environ["CUDA_VISIBLE_DEVICES"] = visible[rank_env.local_rank % len(visible)].strip()


def launch_notes(config: TrainConfig, rank_env: RankEnv, environ: Mapping[str, str]) -> list[str]:
    """Sentences about a process that is a rank because of its environment: what it waits for, and what of the config
    has no effect, because the launcher has decided otherwise."""
    size, per_node = rank_env.world_size, config.processes_per_node
    launcher = "torchrun" if _TORCHRUN in environ else "the environment"
    nodes = environ.get("GROUP_WORLD_SIZE", environ.get("SLURM_STEP_NUM_NODES", str(config.num_nodes)))
    processes = sum(per_node or ()) * (config.num_nodes if len(per_node or ()) == 1 else 1)
    unused = {
        f"world_size={config.world_size}": (config.world_size not in {None, size}, f"{launcher} says {size}"),
        f"processes_per_node={per_node}": (per_node is not None and processes != size, f"{launcher} says {size}"),
        f"num_nodes={config.num_nodes}": (nodes != str(config.num_nodes), f"{launcher} says {nodes}"),
        f"training_mode={config.training_mode}": (
            size > 1 and config.training_mode in {"single", "data_parallel"},
            f"{launcher} says {size} processes",
        ),
        f"max_restarts={config.max_restarts}": (
            str(config.max_restarts) not in {"0", environ.get("TORCHELASTIC_MAX_RESTARTS")},
            "what counts is torchrun's --max-restarts",
        ),
        f"on_machine_loss={config.on_machine_loss}": (
            config.on_machine_loss != "end" and nodes != "1",
            f"machines that {launcher} starts end together; it needs machine 0's join line, or ssh",
        ),
        f"device_ids={config.device_ids}": (
            config.device_ids is not None,
            f"set CUDA_VISIBLE_DEVICES for {launcher} instead",
        ),
    }
    notes = [f"Note: {setting} has no effect: {why}." for setting, (is_unused, why) in unused.items() if is_unused]
    return [*filter(None, [started_by_hand(environ, rank_env)]), *(notes if rank_env.rank == 0 else ())]


def started_by_hand(environ: Mapping[str, str], rank_env: RankEnv) -> str:
    """A note for a process whose variables no launcher has set for it: they may be those of another program."""
    if rank_env.world_size == 1 or _TORCHRUN in environ:
        return ""
    names, starter, advice = ("RANK", "WORLD_SIZE"), "somebody else", "To train with this one alone, unset both"
    if "RANK" not in environ and (rank := _mpi_rank_variable(environ)) is not None:
        if rank_env.rank > 0:
            return ""
        names, starter = (rank, _MPI[rank]), "mpirun"
    elif started_by_srun(environ):
        if "RANK" in environ or rank_env.rank > 0 or _is_started_by_slurm():
            return ""
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS")
        starter, advice = "srun", "In a shell of srun --pty nobody does: start with srun, or unset SLURM_PROCID"
    first, second = (f"{name}={environ[name]}" for name in names)
    return (
        f"Note: {first} and {second} are set in the environment, so this process "
        f"waits for {rank_env.world_size - 1} more that {starter} starts. {advice}."
    )


def _is_started_by_slurm() -> bool:
    """Whether the parent is Slurm itself, and not a shell in which somebody has typed the command."""
    try:
        return psutil.Process(os.getppid()).name() == "slurmstepd"
    except psutil.Error:
        return False


def _number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    return number(name, environ.get(name, default))


def _validated(rank_env: RankEnv) -> RankEnv:
    if not 0 <= rank_env.rank < rank_env.world_size:
        raise ConfigError(
            f"this process is rank {rank_env.rank} of {rank_env.world_size}, which is impossible", _LAUNCHERS
        )
    if rank_env.local_rank < 0:
        raise ConfigError(f"LOCAL_RANK is {rank_env.local_rank}; it must be 0 or more", _LAUNCHERS)
    if not 0 < rank_env.master_port < 65_536:
        raise ConfigError(f"MASTER_PORT is {rank_env.master_port}; it must be from 1 to 65535", _PORT)
    return rank_env
