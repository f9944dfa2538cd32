"""Which ranks watch which, so that the store's load grows with the number of ranks and not with its square."""

from __future__ import annotations

from collections.abc import Sequence

from modules.distributed.startup.member import Member

# Of all ranks together: groups of more ranks send theirs less often.
HEARTBEATS_PER_SECOND = 1024
# So many ranks of a machine watch its processes, so that also the loss of one of them is seen there.
WATCHERS_PER_MACHINE = 2


def judging_ranks(everyone: Sequence[Member]) -> tuple[int, ...]:
    """The ranks that read all heartbeats and decide who is lost or blocks the others: rank 0 and one more.

    That is the first rank of another machine, so that it outlives rank 0's; with one machine, the last rank.
    """
    elsewhere = (member.rank for member in everyone if member.machine_id != everyone[0].machine_id)
    return tuple(dict.fromkeys((0, next(elsewhere, everyone[-1].rank))))


def watched_ranks(everyone: Sequence[Member], own_rank: int) -> tuple[int, ...]:
    """The ranks whose heartbeats `own_rank` reads.

    All of them if it judges. The first ranks of a machine read those of that machine, where a process that has ended or
    is stopped is seen sooner than from outside. The others read none.
    """
    if own_rank in judging_ranks(everyone):
        return tuple(member.rank for member in everyone)
    here = [member.rank for member in everyone if member.machine_id == everyone[own_rank].machine_id]
    return tuple(here) if own_rank in here[:WATCHERS_PER_MACHINE] else ()
