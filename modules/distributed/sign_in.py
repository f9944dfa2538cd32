"""Early synchronisation: every process signs in at the store, and who is missing is known by name.

torch's own rendezvous only counts ("1/2 clients joined"). And a store that torchrun keeps over a restart still holds
the keys of the processes before, so rank 0 hands every process that comes now a prefix of its own.
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
from modules.machine import hostname, machine_id, route_of_group
from modules.run.group_place import Place

TELL_AFTER_S = 5.0
TELL_EVERY_S = 30.0
LOOK_EVERY_S = 0.05

Say = Callable[[str], None]


class GroupError(TrainingError):
    """The processes could not form a group; before the first step Tandem may go on with one device instead."""

    kind = "process_group"


@dataclass(frozen=True)
class Member:
    """One process of the group; what its launcher did not say of its machine is None."""

    rank: int
    local_rank: int
    host: str
    process_id: int
    machine: int | None  # torchrun's and Slurm's number of the node
    processes_here: int | None  # of this run on its machine
    machine_id: str = ""  # host names need not differ; ranks with the same one see each other's processes
    address: str = ""  # of the machine, on the way to the others

    @classmethod
    def here(cls, place: Place, environ: Mapping[str, str] = os.environ) -> Member:
        """This process."""
        machine = environ.get("GROUP_RANK", environ.get("SLURM_NODEID", ""))
        processes = environ.get("LOCAL_WORLD_SIZE", "")
        route = route_of_group(place.master_addr)
        return cls(
            place.rank,
            place.local_rank,
            hostname(),
            os.getpid(),
            int(machine) if machine.isdecimal() else None,
            int(processes) if processes.isdecimal() else None,
            machine_id(),
            "" if route is None else route.address,
        )


def sign_in(store: Store, place: Place, timeout_s: float, say: Say) -> Store:
    """Wait until all processes have come; the part of `store` that is theirs alone, with `members` in it.

    Who waits says now and then for whom. Raises GroupError after `timeout_s` seconds, with the names of the missing.
    """
    own = Member.here(place)
    nonce = uuid.uuid4().hex
    clock = _Clock(timeout_s, say)
    try:
        store.set(f"hello/{place.rank}", json.dumps([nonce, asdict(own)]))
        attempt = nonce if place.rank == 0 else _welcome(store, place, nonce, clock)
        ours = PrefixStore(attempt, store)
        ours.set(f"member/{place.rank}", json.dumps(asdict(own)))
        _wait_for_all(store, ours, attempt, place, clock)
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError
        raise GroupError(
            f"rank {place.rank} on {own.host} lost rank 0 at {place.master_addr}:{place.master_port}, which has ended "
            f"or can no longer be reached{clock.last and f'; at the last look {clock.last}'}.",
            "Look at the message of rank 0.",
        ) from error
    return ours


def members(store: Store, world_size: int) -> tuple[Member, ...]:
    """All processes, by rank; `store` is the one that `sign_in` returned. Machines of one name bear their address."""
    keys = [f"member/{rank}" for rank in range(world_size)]
    return tuple(told_apart([Member(**json.loads(text)) for text in store.multi_get(keys)]))


def told_apart(everyone: Sequence[Member]) -> list[Member]:
    """The same, with hosts such as "localhost (10.0.0.2)" where several machines are called localhost."""
    machines: dict[str, dict[str, str]] = {}
    for member in everyone:
        machines.setdefault(member.host, {})[member.machine_id] = member.address
    words = {}
    for host, addresses in machines.items():
        are_apart = len({*addresses.values()} - {""}) == len(addresses)
        for number, (machine, address) in enumerate(addresses.items()):
            word = address if are_apart else f"machine {number}"
            words[host, machine] = f"{host} ({word})" if len(addresses) > 1 else host
    return [replace(member, host=words[member.host, member.machine_id]) for member in everyone]


@dataclass(frozen=True)
class Absence:
    """Who is missing and who is here, in words."""

    missing: str
    here: str

    def __str__(self) -> str:
        return f"{self.missing} did not come; here: {self.here or 'nobody'}"


def who_is_missing(here: Sequence[Member], world_size: int) -> Absence:
    """For example "ranks 2 and 3 (machine 1) did not come; here: ranks 0 and 1 on alpha"."""
    here = told_apart(here)
    present = {member.rank for member in here}
    missing = [rank for rank in range(world_size) if rank not in present]
    absent = _grouped((_place_of(rank, here), rank) for rank in missing)
    return Absence(_enumerated(f"{_ranks(ranks)}{where}" for where, ranks in absent), by_host(here))


def by_host(group: Sequence[Member]) -> str:
    """Who is where, such as "ranks 0 and 1 on alpha, rank 2 on beta"."""
    return _enumerated(f"{_ranks(ranks)} on {host}" for host, ranks in _grouped((m.host, m.rank) for m in group))


class _Clock:
    """The deadline of a wait, and when to tell for whom one waits."""

    def __init__(self, timeout_s: float, say: Say) -> None:
        self.timeout_s = timeout_s
        self.last = ""  # what was known of the others when it was last told
        self._say = say
        self._deadline = time.monotonic() + timeout_s
        self._tell_at = time.monotonic() + TELL_AFTER_S

    def tick(self, look: Callable[[], Absence], *, silent: bool) -> None:
        """A short pause. Raises GroupError, with what `look` finds, at the deadline."""
        now = time.monotonic()
        if now >= self._deadline:
            self.last = str(look())
            raise did_not_come(self.last, self.timeout_s)
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            absence = look()
            self.last = str(absence)
            if not silent:
                left_s = self._deadline - now
                self._say(f"Waiting for {absence.missing} ({left_s:.0f} s more at most); here: {absence.here}.")
        time.sleep(LOOK_EVERY_S)


def did_not_come(missing: str, timeout_s: float) -> GroupError:
    """The error at the deadline."""
    return GroupError(
        f"Not all processes came within {timeout_s:.0f} s: {missing}.",
        "Start the missing ones (each machine with the same master_addr, initial_port and num_nodes), look at their "
        "own messages, or raise startup_timeout_s.",
    )


def _welcome(store: Store, place: Place, nonce: str, clock: _Clock) -> str:
    """What rank 0 answers to this process: the prefix of this attempt."""
    key = f"welcome/{nonce}"
    while not store.check([key]):
        clock.tick(lambda: who_is_missing(_said_hello(store, place, without=0), place.world_size), silent=False)
    return store.get(key).decode()


def _wait_for_all(store: Store, ours: Store, attempt: str, place: Place, clock: _Clock) -> None:
    keys = [f"member/{rank}" for rank in range(place.world_size)]
    answered: dict[int, bytes] = {}

    def look() -> Absence:
        here = [Member(**json.loads(ours.get(key))) for key in keys if ours.check([key])]
        return who_is_missing(here, place.world_size)

    while not ours.check(keys):
        if place.rank == 0:
            _answer(store, attempt, place.world_size, answered)
        elif ours.check(["gave_up"]):
            raise did_not_come(ours.get("gave_up").decode(), clock.timeout_s)
        try:
            clock.tick(look, silent=place.rank != 0)
        except GroupError:
            if place.rank == 0:
                ours.set("gave_up", clock.last)
            raise


def _answer(store: Store, attempt: str, world_size: int, answered: dict[int, bytes]) -> None:
    """Welcome whoever said hello since the last look; the hello of a former process does no harm."""
    for rank in range(1, world_size):
        key = f"hello/{rank}"
        if store.check([key]) and (hello := store.get(key)) != answered.get(rank):
            answered[rank] = hello
            store.set(f"welcome/{json.loads(hello)[0]}", attempt)


def _said_hello(store: Store, place: Place, *, without: int) -> list[Member]:
    others = [rank for rank in range(place.world_size) if rank != without]
    return [Member(**json.loads(store.get(f"hello/{r}"))[1]) for r in others if store.check([f"hello/{r}"])]


def _place_of(rank: int, here: Sequence[Member]) -> str:
    """Where a missing rank should be, as far as those present tell."""
    for member in here:
        first = member.rank - member.local_rank
        if member.processes_here is not None and first <= rank < first + member.processes_here:
            return f" on {member.host}"
    sizes = {member.processes_here for member in here}
    size = sizes.pop() if len(sizes) == 1 else None
    are_even = size is not None and all(
        member.machine is not None and member.rank // size == member.machine for member in here
    )
    return f" (machine {rank // size})" if size and are_even else ""


def _grouped(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Neighbouring ranks with the same word."""
    return [(word, [rank for _, rank in group]) for word, group in groupby(pairs, key=lambda pair: pair[0])]


def _ranks(ranks: Sequence[int]) -> str:
    """For example "rank 1", "ranks 2 and 3" or "ranks 4 to 7"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {_enumerated(map(str, ranks))}"


def _enumerated(words: Iterable[str]) -> str:
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last
