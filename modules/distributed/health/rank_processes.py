"""The processes of this machine's ranks: only those that are really part of this run are looked at or killed.

Another rank names its process id, and it may name any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import psutil

from modules.distributed.startup.member import Member
from modules.run.join.keys import STORE_SECRET
from modules.run.supervise.process_tree import START_TOKEN

# What all processes of one start, or one rank of it, have in their environment when they begin.
_OF_THE_START = (START_TOKEN, STORE_SECRET)
_OF_THE_RANK = ("WORLD_SIZE", "MASTER_PORT")


def rank_processes(everyone: Sequence[Member], own_rank: int) -> dict[int, psutil.Process]:
    """The process of each rank on this machine, by rank, unless the process that it names is another program's.

    They know when they started, so a process that gets the id of one that has ended is not mistaken for it.
    """
    own = psutil.Process()
    found: dict[int, psutil.Process] = {}
    for member in everyone:
        if member.machine_id != everyone[own_rank].machine_id:
            continue
        try:
            process = psutil.Process(member.process_id)
            if process.pid == own.pid or _is_of_this_run(process, own, member.rank):
                found[member.rank] = process
        except (psutil.Error, OSError):
            continue
    return found


def _is_of_this_run(process: psutil.Process, own: psutil.Process, rank: int) -> bool:
    """Whether it has the same user, and the same start or launcher."""
    if process.username() != own.username():
        return False
    theirs = process.environ()
    if any(_is_same(theirs, name) for name in _OF_THE_START):
        return True
    if process.ppid() == own.ppid() and process.exe() == own.exe():
        return True
    return theirs.get("RANK") == str(rank) and all(_is_same(theirs, name) for name in _OF_THE_RANK)


def _is_same(theirs: Mapping[str, str], name: str) -> bool:
    return theirs.get(name, "") == os.environ.get(name, "") != ""
