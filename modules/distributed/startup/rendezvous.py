"""Rendezvous before the process group: every process registers in the store, so missing ranks can be named.

torch's own rendezvous only counts ("1/2 clients joined"). A store that torchrun keeps across a restart still holds the
keys of the previous processes, so rank 0 sends every process that joins now a prefix unique to this attempt.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from torch._C._distributed_c10d import PrefixStore, Store

from modules.config import TrainingError
from modules.distributed.formatting import format_ranks, join_with_and
from modules.machine import hostname, machine_id, route_to_master
from modules.run.launch.rank_env import RankEnv

REPORT_AFTER_S = 5.0
REPORT_EVERY_S = 30.0
POLL_EVERY_S = 0.05

Log = Callable[[str], None]


class GroupError(TrainingError):
    """The processes could not form a group; before the first step Tandem may fall back to one device."""

    kind = "process_group"


@dataclass(frozen=True)
class Member:
    """One process of the group; None for what its launcher does not provide."""

    rank: int
    local_rank: int
    host: str
    process_id: int
    node_rank: int | None  # from torchrun or Slurm
    local_world_size: int | None
    machine_id: str = ""  # ranks with the same one see each other's processes; host names may be ambiguous
    address: str = ""  # of the interface that leads to the others

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
        )


def rendezvous(store: Store, rank_env: RankEnv, timeout_s: float, log: Log) -> Store:
    """Wait until all processes have joined; returns a prefix of `store` for this attempt, which holds `members`.

    Logs from time to time which ranks are missing. Raises GroupError that names them after `timeout_s` seconds.
    """
    own = Member.of_this_process(rank_env)
    nonce = uuid.uuid4().hex
    deadline = _Deadline(timeout_s, log)
    try:
        store.set(f"hello/{rank_env.rank}", json.dumps([nonce, asdict(own)]))
        attempt = nonce if rank_env.rank == 0 else _wait_for_welcome(store, rank_env, nonce, deadline)
        ours = PrefixStore(attempt, store)
        ours.set(f"member/{rank_env.rank}", json.dumps(asdict(own)))
        _wait_for_all(store, ours, attempt, rank_env, deadline)
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError
        raise GroupError(
            f"rank {rank_env.rank} on {own.host} lost rank 0 at {rank_env.master_addr}:{rank_env.master_port}, "
            f"which has exited or can no longer be reached{deadline.last and f'; last known state: {deadline.last}'}.",
            "Look at rank 0's message.",
        ) from error
    return ours


def members(store: Store, world_size: int) -> tuple[Member, ...]:
    """All processes, by rank; `store` is what `rendezvous` returned. Ambiguous host names get an address appended."""
    keys = [f"member/{rank}" for rank in range(world_size)]
    return tuple(disambiguate_hosts([Member(**json.loads(text)) for text in store.multi_get(keys)]))


def disambiguate_hosts(everyone: Sequence[Member]) -> list[Member]:
    """The same, with hosts like "localhost (10.0.0.2)" if several machines are called localhost."""
    machines: dict[str, dict[str, str]] = {}
    for member in everyone:
        machines.setdefault(member.host, {})[member.machine_id] = member.address
    names = {}
    for host, addresses in machines.items():
        are_distinct = len({*addresses.values()} - {""}) == len(addresses)
        for number, (machine, address) in enumerate(addresses.items()):
            suffix = address if are_distinct else f"machine {number}"
            names[host, machine] = f"{host} ({suffix})" if len(addresses) > 1 else host
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


class _Deadline:
    """The deadline of a wait, and when to log what is missing."""

    def __init__(self, timeout_s: float, log: Log) -> None:
        self.timeout_s = timeout_s
        self.last = ""  # the missing and present ranks when they were last logged
        self._log = log
        self._deadline = time.monotonic() + timeout_s
        self._report_at = time.monotonic() + REPORT_AFTER_S

    def tick(self, find_missing: Callable[[], MissingRanks], *, silent: bool) -> None:
        """Pause briefly. Raises GroupError, with what `find_missing` returns, at the deadline."""
        now = time.monotonic()
        if now >= self._deadline:
            self.last = str(find_missing())
            raise rendezvous_timeout(self.last, self.timeout_s)
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            missing = find_missing()
            self.last = str(missing)
            if not silent:
                left_s = self._deadline - now
                self._log(f"Waiting for {missing.missing} (at most {left_s:.0f} s more); present: {missing.present}.")
        time.sleep(POLL_EVERY_S)


def rendezvous_timeout(missing: str, timeout_s: float) -> GroupError:
    """The error at the deadline."""
    return GroupError(
        f"Not all processes joined within {timeout_s:.0f} s: {missing}.",
        "Start the missing ones (every machine with the same master_addr, initial_port and num_nodes), check their "
        "messages, or raise startup_timeout_s.",
    )


def _wait_for_welcome(store: Store, rank_env: RankEnv, nonce: str, deadline: _Deadline) -> str:
    """The prefix of this attempt, as rank 0 sends it to this process."""
    key = f"welcome/{nonce}"
    while not store.check([key]):
        deadline.tick(lambda: find_missing_ranks(_registered(store, rank_env), rank_env.world_size), silent=False)
    return store.get(key).decode()


def _wait_for_all(store: Store, ours: Store, attempt: str, rank_env: RankEnv, deadline: _Deadline) -> None:
    keys = [f"member/{rank}" for rank in range(rank_env.world_size)]
    answered: dict[int, bytes] = {}

    def find_missing() -> MissingRanks:
        joined = [Member(**json.loads(ours.get(key))) for key in keys if ours.check([key])]
        return find_missing_ranks(joined, rank_env.world_size)

    while not ours.check(keys):
        if rank_env.rank == 0:
            _welcome_new(store, attempt, rank_env.world_size, answered)
        elif ours.check(["gave_up"]):
            raise rendezvous_timeout(ours.get("gave_up").decode(), deadline.timeout_s)
        try:
            deadline.tick(find_missing, silent=rank_env.rank != 0)
        except GroupError:
            if rank_env.rank == 0:
                ours.set("gave_up", deadline.last)
            raise


def _welcome_new(store: Store, attempt: str, world_size: int, answered: dict[int, bytes]) -> None:
    """Answer the hellos that arrived since the last call; a hello left by a previous process does no harm."""
    for rank in range(1, world_size):
        key = f"hello/{rank}"
        if store.check([key]) and (hello := store.get(key)) != answered.get(rank):
            answered[rank] = hello
            store.set(f"welcome/{json.loads(hello)[0]}", attempt)


def _registered(store: Store, rank_env: RankEnv) -> list[Member]:
    """The ranks other than 0 that have sent a hello."""
    others = range(1, rank_env.world_size)
    return [Member(**json.loads(store.get(f"hello/{r}"))[1]) for r in others if store.check([f"hello/{r}"])]


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
