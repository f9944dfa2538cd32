"""Rendezvous before the process group: every process registers in the store, so missing ranks can be named.

torch's own rendezvous only counts ("1/2 clients joined"). A store that torchrun keeps across a restart still holds the
keys of the previous processes, so rank 0 sends every process that joins now a prefix unique to this attempt.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Final

from pydantic import Field

from modules.config import TrainingError
from modules.distributed.formatting import format_ranks
from modules.distributed.run_store import RunStore, StoreFault, parse_value
from modules.distributed.startup.host_probe import HostProbe
from modules.distributed.startup.member import Member, MissingRanks, disambiguate_hosts, find_missing_ranks
from modules.files import printable
from modules.machine import hostname, machine_id
from modules.run.format_duration import in_words
from modules.run.launch.rank_env import RankEnv
from modules.run.launch.store_secret import SECRET_ADVICE

REPORT_AFTER_S = 5.0
REPORT_EVERY_S = 30.0
LOOK_EVERY_S = 2.0  # by the rank that reports
POLL_EVERY_S = 0.05
ANSWERS_WITHIN_S = 20.0  # the store; it waits for nothing
# How long a rank with another secret is waited for: rank 0 may host the store, so it leaves last.
OTHER_SECRET_AFTER_S = 2.0
RANK_0_LEAVES_LATER_S = 3.0

_MAX_HOST_CHARS = 200

Log = Callable[[str], None]
_Nonce = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
SIGN_EVERY_S: Final = 2.0  # by each rank that waits for others
SILENT_AFTER_S: Final = 5.0  # from then on the host is probed again and again
CUT_OFF_AFTER_S: Final = 10.0  # and this long it is silent, if no probe is answered


class GroupError(TrainingError):
    """The processes could not form a group; before the first step Tandem may fall back to one device."""

    kind = "process_group"


@dataclass(frozen=True)
class _GaveUp:
    """Why rank 0 no longer waits, for the others."""

    message: str
    advice: str


def rendezvous(store: RunStore, rank_env: RankEnv, timeout_s: float, log: Log) -> RunStore:
    """Wait until all processes have joined; returns a prefix of `store` for this attempt, which holds `members`.

    Logs from time to time which ranks are missing. Raises GroupError that names them after `timeout_s` seconds, or a
    rank that has another secret, and StoreFault for values that no rank of this run has written.
    """
    own = Member.of_this_process(rank_env)
    nonce = uuid.uuid4().hex
    deadline = _Deadline(timeout_s, log)
    connected, store = store, store.answering(ANSWERS_WITHIN_S)
    secrets = _Secrets(store, rank_env)
    try:
        store.announce_secret(rank_env.rank)
        store.set(f"hello/{rank_env.rank}", json.dumps(asdict(_Hello(nonce, own))))
        attempt = nonce if rank_env.rank == 0 else _wait_for_welcome(store, rank_env, nonce, deadline, secrets)
        ours = store.within(attempt)
        ours.set(f"member/{rank_env.rank}", json.dumps(asdict(own)))
        _wait_for_all(store, ours, attempt, rank_env, deadline, secrets)
        descriptions = ours.multi_get([f"member/{rank}" for rank in range(rank_env.world_size)])
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError
        raise GroupError(
            f"rank {rank_env.rank} on {own.host} lost rank 0 at {rank_env.master_addr}:{rank_env.master_port}, "
            f"which has exited or can no longer be reached{deadline.last and f'; last known state: {deadline.last}'}.",
            "Look at rank 0's message.",
        ) from error
    ours = connected.within(attempt)
    ours.descriptions = tuple(descriptions)
    return ours


def members(store: RunStore, world_size: int) -> tuple[Member, ...]:
    """All processes, by rank; `store` is what `rendezvous` returned. Ambiguous host names get an address appended."""
    texts = store.descriptions or store.multi_get([f"member/{rank}" for rank in range(world_size)])
    return tuple(disambiguate_hosts([_member(text, rank) for rank, text in enumerate(texts)]))


def _member(text: bytes, rank: int) -> Member:
    what = f"the description of rank {rank}"
    return _checked(parse_value(Member, text, what), rank, what)


def _checked(member: Member, rank: int, what: str) -> Member:
    if member.rank != rank:
        raise StoreFault(f"{what} in the store is that of rank {member.rank}.")
    return replace(
        member,
        host=printable(member.host, _MAX_HOST_CHARS),
        other_interfaces=printable(member.other_interfaces, _MAX_HOST_CHARS),
    )


@dataclass(frozen=True)
class _Hello:
    """A process that wants to join; the answer names its nonce."""

    nonce: _Nonce
    member: Member

    @classmethod
    def parse(cls, text: bytes, rank: int) -> _Hello:
        """The hello of `rank`."""
        what = f"the hello of rank {rank}"
        hello = parse_value(cls, text, what)
        return replace(hello, member=_checked(hello.member, rank, what))


class _Deadline:
    """The deadline of a wait, and when to log what is missing."""

    def __init__(self, timeout_s: float, log: Log) -> None:
        self.timeout_s = timeout_s
        self.last = ""  # the missing and present ranks when they were last logged
        self._log = log
        self._deadline = time.monotonic() + timeout_s
        self._look_at = self._report_at = time.monotonic() + REPORT_AFTER_S

    def tick(self, find_missing: Callable[[], MissingRanks], *, silent: bool) -> None:
        """Pause briefly. Raises GroupError, with what `find_missing` returns, at the deadline."""
        now = time.monotonic()
        if now >= self._deadline:
            self.last = str(find_missing())
            raise rendezvous_timeout(self.last, self.timeout_s)
        if now >= self._look_at:
            self._look_at = now + (REPORT_EVERY_S if silent else LOOK_EVERY_S)
            missing = find_missing()
            has_changed = str(missing) != self.last  # somebody has joined, which people wait to see
            self.last = str(missing)
            if not silent and (has_changed or now >= self._report_at):
                self._report_at = now + REPORT_EVERY_S
                left_s = self._deadline - now
                self._log(
                    f"Waiting for {missing.missing} (at most {in_words(left_s)} more); present: {missing.present}."
                )
        time.sleep(POLL_EVERY_S)


def rendezvous_timeout(missing: str, timeout_s: float) -> GroupError:
    """The error at the deadline."""
    return GroupError(
        f"Not all processes joined within {in_words(timeout_s)}: {missing}.",
        "Start the missing ones (every machine with the same master_addr, initial_port and num_nodes), check their "
        "messages, or raise startup_timeout_s.",
    )


class _Secrets:
    """Notices ranks that were started with another secret, which would be waited for in vain."""

    def __init__(self, store: RunStore, rank_env: RankEnv) -> None:
        self._store = store
        self._rank = rank_env.rank
        # a rank other than 0 asks no other for the way in
        self._others = range(1, rank_env.world_size) if rank_env.rank == 0 else range(1)
        self._seen_at: float | None = None

    def check(self) -> None:
        """Raises GroupError once a rank has had another secret for a while."""
        found = ((rank, text) for rank in self._others if (text := self._store.secret_difference(rank)))
        rank, difference = next(found, (0, ""))
        if not difference:
            self._seen_at = None
            return
        now = time.monotonic()
        self._seen_at = now if self._seen_at is None else self._seen_at
        if now - self._seen_at > OTHER_SECRET_AFTER_S + (RANK_0_LEAVES_LATER_S if self._rank == 0 else 0):
            raise GroupError(f"rank {rank} {difference} (rank {self._rank} on {hostname()}).", SECRET_ADVICE)


def _wait_for_welcome(store: RunStore, rank_env: RankEnv, nonce: str, deadline: _Deadline, secrets: _Secrets) -> str:
    """The prefix of this attempt, as rank 0 sends it to this process."""
    key = f"welcome/{nonce}"
    while (welcome := store.find(key)) is None:
        secrets.check()
        deadline.tick(lambda: find_missing_ranks(_registered(store, rank_env), rank_env.world_size), silent=False)
    return parse_value(_Nonce, welcome, "the welcome of rank 0")


def _wait_for_all(
    store: RunStore, ours: RunStore, attempt: str, rank_env: RankEnv, deadline: _Deadline, secrets: _Secrets
) -> None:
    keys = [f"member/{rank}" for rank in range(rank_env.world_size)]
    answered: dict[int, bytes] = {}
    signs = _SignsOfLife(ours, rank_env)

    def find_missing() -> MissingRanks:
        joined = [_member(ours.get(key), rank) for rank, key in enumerate(keys) if ours.check([key])]
        return find_missing_ranks(joined, rank_env.world_size)

    while not ours.check(keys):
        if rank_env.rank == 0:
            _welcome_new(store, attempt, rank_env.world_size, answered)
            secrets.check()
        elif (known := ours.find("gave_up")) is not None:
            given = parse_value(_GaveUp, known, "why rank 0 gave up")
            raise GroupError(given.message, given.advice)
        try:
            signs.exchange(answered)
            deadline.tick(find_missing, silent=rank_env.rank != 0)
        except GroupError as error:
            if rank_env.rank == 0:
                ours.set("gave_up", json.dumps(asdict(_GaveUp(error.message, error.advice))))
            raise


class _SignsOfLife:
    """While some ranks are missing, those that have joined say that they are there, and rank 0 looks."""

    def __init__(self, ours: RunStore, rank_env: RankEnv) -> None:
        self._store, self._rank = ours, rank_env.rank
        self._hosts = JoinedHosts(machine_id(), rank_env.master_port)
        self._number = 0
        self._next_at = 0.0

    def exchange(self, hellos: Mapping[int, bytes]) -> None:
        """Do it if it is time; `hellos` are those that rank 0 has answered. Raises GroupError on rank 0."""
        if (now := time.monotonic()) < self._next_at:
            return
        self._next_at = now + SIGN_EVERY_S
        self._number += 1
        if self._rank != 0:
            self._store.set(f"waits/{self._rank}", str(self._number))
            return
        joined = {rank: _Hello.parse(hello, rank).member for rank, hello in hellos.items()}
        for rank, member in joined.items():
            self._hosts.record(rank, member.machine_id, member.address, self._store.find(f"waits/{rank}") or b"")
        if (found := self._hosts.cut_off()) is not None:
            ranks, seconds = found
            host = joined[ranks[0]].host
            raise GroupError(
                f"Host {host} ({format_ranks(ranks)}) sent no sign of life for {in_words(seconds)} and cannot be "
                "reached. It had joined, and was cut off before all other ranks had.",
                "Check that it is running and connected; then start the run again on all machines.",
            )


def _welcome_new(store: RunStore, attempt: str, world_size: int, answered: dict[int, bytes]) -> None:
    """Answer the hellos that arrived since the last call; a hello left by a previous process does no harm."""
    for rank in range(1, world_size):
        key = f"hello/{rank}"
        if store.check([key]) and (hello := store.get(key)) != answered.get(rank):
            answered[rank] = hello
            store.set(f"welcome/{_Hello.parse(hello, rank).nonce}", json.dumps(attempt))


def _registered(store: RunStore, rank_env: RankEnv) -> list[Member]:
    """The ranks other than 0 that have sent a hello."""
    others = range(1, rank_env.world_size)
    return [_Hello.parse(store.get(f"hello/{r}"), r).member for r in others if store.check([f"hello/{r}"])]


@dataclass
class _Host:
    probe: HostProbe | None  # None without an address
    signs: dict[int, bytes] = field(default_factory=dict)  # the last one of each of its ranks
    heard_at: float = field(default_factory=time.monotonic)  # of any of them


class JoinedHosts:
    """Processes that end are no matter: they may be started again. A host that nothing answers from is."""

    def __init__(self, own_machine: str, port: int) -> None:
        """`port`: any will do, as a refused connection is an answer."""
        self._own_machine, self._port = own_machine, port
        self._hosts: dict[str, _Host] = {}

    def record(self, rank: int, machine: str, address: str, sign: bytes) -> None:
        """Note what a rank on another machine has said last."""
        if machine == self._own_machine:
            return
        host = self._hosts.get(machine)
        if host is None:
            host = self._hosts[machine] = _Host(HostProbe(address, self._port) if address else None)
            if host.probe is not None:
                host.probe.start()  # to know whether it answers at all
        if host.signs.get(rank) != sign:
            host.signs[rank] = sign
            host.heard_at = time.monotonic()

    def cut_off(self) -> tuple[list[int], float] | None:
        """The ranks of a host that is cut off, and for how many seconds it has been silent; None if there is none."""
        for host in self._hosts.values():
            silent_s = time.monotonic() - host.heard_at
            if silent_s > SILENT_AFTER_S and host.probe is not None:
                is_unreachable = host.probe.is_unreachable()
                if is_unreachable and silent_s > CUT_OFF_AFTER_S:
                    return sorted(host.signs), silent_s
        return None
