"""Which process of how many this is, as torchrun, Slurm's srun or our own spawn say in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.config import ConfigError
from modules.run.slurm.environment import (
    local_rank_of_step,
    master_of_step,
    number,
    port_of_job,
    started_by_srun,
    tasks_of_step,
)

_LAUNCHERS = "torchrun and srun set these numbers; for a plain start unset RANK, WORLD_SIZE and SLURM_PROCID"
_PORT = "Set the same free port on every machine, such as 29500"


@dataclass(frozen=True)
class Place:
    """One process in the group: its rank, its number on this machine, and where rank 0 listens."""

    rank: int
    local_rank: int
    world_size: int
    master_addr: str
    master_port: int

    def environment(self) -> dict[str, str]:
        """The variables of torch's env:// rendezvous for this place."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def place_from_environment(environ: Mapping[str, str], default_port: int = 12355) -> Place | None:
    """The place that the environment gives this process, or None where it was started plainly.

    torchrun sets RANK, LOCAL_RANK and WORLD_SIZE. Under srun the same facts are SLURM_PROCID, SLURM_LOCALID and
    SLURM_STEP_NUM_TASKS; MASTER_ADDR and MASTER_PORT are respected there, and found out where they are missing.
    Raises ConfigError where one of them is no number or out of range, or the rank is none of the group.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _checked(
            Place(
                rank=_number(environ, "RANK"),
                local_rank=_number(environ, "LOCAL_RANK", environ["RANK"]),
                world_size=_number(environ, "WORLD_SIZE"),
                master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
                master_port=_number(environ, "MASTER_PORT", str(default_port)),
            )
        )
    if started_by_srun(environ):
        port = port_of_job(environ, default_port)
        return _checked(
            Place(
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


def _number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    return number(name, environ.get(name, default))


def _checked(place: Place) -> Place:
    if not 0 <= place.rank < place.world_size:
        raise ConfigError(f"this process is rank {place.rank} of {place.world_size}, which cannot be", _LAUNCHERS)
    if place.local_rank < 0:
        raise ConfigError(f"LOCAL_RANK is {place.local_rank}; it must be 0 or more", _LAUNCHERS)
    if not 0 < place.master_port < 65_536:
        raise ConfigError(f"MASTER_PORT is {place.master_port}; it must be from 1 to 65535", _PORT)
    return place
