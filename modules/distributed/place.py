"""Which process of how many this is, as torchrun, Slurm's srun or our own spawn say in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    SLURM_NTASKS; a single task is a plain start, because every command inside an allocation sees those variables.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Place(
            rank=int(environ["RANK"]),
            local_rank=int(environ.get("LOCAL_RANK", environ["RANK"])),
            world_size=int(environ["WORLD_SIZE"]),
            master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
            master_port=int(environ.get("MASTER_PORT", default_port)),
        )
    if "SLURM_PROCID" in environ and int(environ.get("SLURM_NTASKS", "1")) > 1:
        one_node = environ.get("SLURM_NNODES", "1") == "1"
        launcher = "127.0.0.1" if one_node else environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        return Place(
            rank=int(environ["SLURM_PROCID"]),
            local_rank=int(environ.get("SLURM_LOCALID", "0")),
            world_size=int(environ["SLURM_NTASKS"]),
            master_addr=environ.get("MASTER_ADDR", launcher),
            master_port=int(environ.get("MASTER_PORT", default_port)),
        )
    return None
