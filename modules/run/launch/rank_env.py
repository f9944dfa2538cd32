"""Rank, world size and master address of this process, from the environment set by torchrun, srun or spawn."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from modules.config import ConfigError
from modules.run.launch.slurm_environment import (
    local_rank_of_step,
    master_of_step,
    number,
    port_of_job,
    started_by_srun,
    tasks_of_step,
)

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
    MASTER_ADDR and MASTER_PORT are respected there and derived if missing.
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


def use_own_slice(environ: MutableMapping[str, str], rank_env: RankEnv) -> None:
    """Of several GPUs in CUDA_VISIBLE_DEVICES some of which are slices (MIG), leave this rank its own.

    CUDA shows a process one slice only, the first, on which all ranks would train. To be called before torch is asked
    for a GPU.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if any(entry.strip().startswith("MIG-") for entry in visible):
        environ["CUDA_VISIBLE_DEVICES"] = visible[rank_env.local_rank % len(visible)].strip()


def started_by_hand(environ: Mapping[str, str], rank_env: RankEnv) -> str:
    """A note for a process whose variables no launcher has set: they may be left over from another program."""
    if rank_env.world_size == 1 or "TORCHELASTIC_RUN_ID" in environ or started_by_srun(environ):
        return ""
    return (
        f"Note: RANK={rank_env.rank} and WORLD_SIZE={rank_env.world_size} are set in the environment, so this process "
        f"waits for {rank_env.world_size - 1} more that somebody else starts. To train with this one alone, unset both."
    )


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
