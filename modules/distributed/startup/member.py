"""The processes of a group: who they are, and how people are told of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated

from pydantic import Field

from modules.distributed.formatting import format_ranks, join_with_and
from modules.machine import distinct_names, hostname, machine_id, route_to_master
from modules.run.launch.rank_env import RankEnv


@dataclass(frozen=True)
class Member:
    """One process of the group; None for what its launcher does not provide."""

    rank: Annotated[int, Field(ge=0, lt=1 << 20)]
    local_rank: Annotated[int, Field(ge=0, lt=1 << 20)]
    host: str
    process_id: Annotated[int, Field(ge=1, lt=1 << 31)]
    node_rank: int | None  # from torchrun or Slurm
    local_world_size: int | None
    machine_id: str = ""  # ranks with the same one see each other's processes; host names may be ambiguous
    address: str = ""  # of the interface that leads to the others
    other_interfaces: str = ""  # that the user has set there, such as "GLOO_SOCKET_IFNAME is tun0, but eth0 leads ..."

    @classmethod
    def of_this_process(cls, rank_env: RankEnv, environ: Mapping[str, str] = os.environ) -> Member:
        """This process."""
        node_rank = environ.get("GROUP_RANK", environ.get("SLURM_NODEID", ""))
        local_world_size = environ.get("LOCAL_WORLD_SIZE", "")
        route = route_to_master(rank_env.master_addr)
        return cls(
            rank_env.rank,
            rank_env.local_rank,
            hostname(),
            os.getpid(),
            int(node_rank) if node_rank.isdecimal() else None,
            int(local_world_size) if local_world_size.isdecimal() else None,
            machine_id(),
            "" if route is None else route.address,
            "" if route is None else _other_interfaces(route.interface, rank_env.master_addr, environ),
        )


def _other_interfaces(leading: str, master_addr: str, environ: Mapping[str, str]) -> str:
    named = {name: environ.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    others = [f"{name} is {value}" for name, value in named.items() if value.lstrip("=") not in ("", leading)]
    return f"{' and '.join(others)}, but {leading} leads to {master_addr}" if others else ""


def disambiguate_hosts(everyone: Sequence[Member]) -> list[Member]:
    """The same, with hosts like "localhost (10.0.0.2)" if several machines are called localhost."""
    machines = {(member.host, member.machine_id): member.address for member in everyone}
    names = dict(
        zip(machines, distinct_names([(host, address) for (host, _), address in machines.items()]), strict=True)
    )
    return [replace(member, host=names[member.host, member.machine_id]) for member in everyone]


@dataclass(frozen=True)
class MissingRanks:
    """The ranks that are missing and those that are present, as text."""

    missing: str
    present: str

    def __str__(self) -> str:
        return f"{self.missing} did not join; present: {self.present or 'none'}"


def find_missing_ranks(joined: Sequence[Member], world_size: int) -> MissingRanks:
    """For example "ranks 2 and 3 (machine 1) did not join; present: ranks 0 and 1 on alpha"."""
    joined = disambiguate_hosts(joined)
    present = {member.rank for member in joined}
    missing = [rank for rank in range(world_size) if rank not in present]
    absent = _grouped((_machine_of(rank, joined), rank) for rank in missing)
    text = join_with_and(f"{format_ranks(ranks)}{machine}" for machine, ranks in absent)
    return MissingRanks(text, ranks_by_host(joined))


def ranks_by_host(group: Sequence[Member]) -> str:
    """For example "ranks 0 and 1 on alpha and rank 2 on beta"."""
    hosts = _grouped((member.host, member.rank) for member in group)
    return join_with_and(f"{format_ranks(ranks)} on {host}" for host, ranks in hosts)


def ranks_by_machine(everyone: Sequence[Member]) -> list[list[int]]:
    """The ranks of each machine, that of rank 0 first. A launcher may call one machine several, but not several one:
    of processes that mpirun has started in a job of Slurm, all may have the node of one step."""
    is_numbered = all(member.node_rank is not None for member in everyone)
    found: dict[tuple[int | None, str], list[int]] = {}
    for member in everyone:
        found.setdefault((member.node_rank if is_numbered else None, member.machine_id), []).append(member.rank)
    return list(found.values())


def _machine_of(rank: int, joined: Sequence[Member]) -> str:
    """Where a missing rank should be, as far as the others reveal it."""
    for member in joined:
        first = member.rank - member.local_rank
        if member.local_world_size is not None and first <= rank < first + member.local_world_size:
            return f" on {member.host}"
    sizes = {member.local_world_size for member in joined}
    size = sizes.pop() if len(sizes) == 1 else None
    are_even = size is not None and all(
        member.node_rank is not None and member.rank // size == member.node_rank for member in joined
    )
    return f" (machine {rank // size})" if size and are_even else ""


def _grouped(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Runs of consecutive pairs with the same text."""
    return [(text, [rank for _, rank in group]) for text, group in groupby(pairs, key=lambda pair: pair[0])]
