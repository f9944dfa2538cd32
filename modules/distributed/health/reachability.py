"""Which silent machines are looked at from here.

A rank may be silent for a while because native code holds the GIL. A machine that has lost its network or its power
does not even refuse a connection, so its loss is certain sooner.
"""

from __future__ import annotations

from collections.abc import Sequence

from modules.distributed.startup.host_probe import HostProbe
from modules.distributed.startup.member import Member
from modules.run.launch.rank_env import RankEnv


def host_probes(everyone: Sequence[Member], rank_env: RankEnv) -> dict[str, HostProbe]:
    """The machines that this rank probes, by machine id: on rank 0 all others, elsewhere the one that hosts the store.

    Rank 0 probes every machine once, to know which of them answer.
    """
    own, first = everyone[rank_env.rank], everyone[0]
    if own.machine_id != first.machine_id:
        return {first.machine_id: HostProbe(rank_env.master_addr, rank_env.master_port, answers=True)}
    if rank_env.rank != 0:
        return {}
    others = {member.machine_id: member.address for member in everyone if member.machine_id != own.machine_id}
    probes = {machine: HostProbe(address, rank_env.master_port) for machine, address in others.items() if address}
    for probe in probes.values():
        probe.start()
    return probes
