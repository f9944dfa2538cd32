"""One thread per rank that sends heartbeats, watches those of the others, and ends a run that cannot continue.

If a rank dies, stops or hangs, the others must not wait for it, and all must report the same cause. Each rank's
watchdog puts a heartbeat into the store. One that sees that a rank is lost, or that all wait for one that never
arrives, puts a failure there, and so does a rank that fails by itself; duties.py says which ranks look. The first
failure counts. It reaches every machine before the connections break, so that a consequence is never mistaken for the
cause.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Self

from modules.config import TrainingError
from modules.distributed.health.diagnosis import (
    IDLE_AFTER_S,
    RankSnapshot,
    WaitRow,
    describe_wait,
    find_mismatch,
    find_straggler,
    format_stacks,
    is_any_overdue,
    wait_rows,
)
from modules.distributed.health.exchange import Exchange
from modules.distributed.health.heartbeat import Heartbeat, SelfMonitor
from modules.distributed.health.heartbeat_monitor import (
    SILENT_AFTER_S,
    STOPPED_AFTER_S,
    HeartbeatMonitor,
    failure_of,
    is_stopped,
)
from modules.distributed.health.timed_store import StoreClosed, StoreTimeout, TimedStore
from modules.distributed.process_group import Group, Meeting, device_of
from modules.distributed.startup.host_probe import HostProbe
from modules.distributed.startup.member import Member
from modules.distributed.startup.rendezvous import GroupError
from modules.run.exit_codes import exit_code_of
from modules.run.folder.error_rules import advice_for_kind
from modules.run.folder.failures import Failure, record_failure
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.rank_env import RankEnv

HEARTBEAT_EVERY_S = 1.0
STORE_TIMEOUT_S = 3.0
# How long a rank whose error is only a consequence of another's waits for the cause.
FIND_CAUSE_WITHIN_S = 10.0
# How long the main thread may take to leave by itself, once the run has failed.
LEAVE_WITHIN_S = 3.0
REPORT_WAITING_AFTER_S = 5.0
REPORT_WAITING_EVERY_S = 10.0
NOTE_LONG_WAIT_EVERY_S = 60.0
# Work that others wait for may take hours, but its main thread uses some CPU time now and then.
FROZEN_AFTER_S = 1800.0
_MAX_TRACEBACK_CHARS = 30_000
# Of all ranks together: groups of more ranks send theirs less often.
HEARTBEATS_PER_SECOND = 1024
# So many ranks of a machine watch its processes, so that also the loss of one of them is seen there.
WATCHERS_PER_MACHINE = 2


class PeerLost(TrainingError):
    """Another rank is gone; its own failure is the one to read."""

    kind = "peer_lost"


class Watchdog:
    """Guards the block it is entered for: the process group, and connecting to it once all ranks have joined."""

    def __init__(
        self,
        group: Group | Meeting,
        folder: RunFolder | None = None,
        *,
        expected: tuple[type[BaseException], ...] = (),
        on_waiting: Callable[[list[WaitRow]], None] | None = None,
        on_long_wait: Callable[[str], None] | None = None,
        on_force_exit: Callable[[Failure], None] | None = None,
    ) -> None:
        """Failures are recorded in `folder`; exceptions of the types `expected` are not failures.

        `on_waiting` is called, on a judging rank, from time to time with the ranks that wait, `on_long_wait` with one
        sentence about them if it takes minutes, `on_force_exit` with the reason for which this process is about to
        be killed.
        """
        self._everyone = group.members
        self._own = group.members[group.rank]
        self._rank_env = group.rank_env
        self._folder = folder
        self._expected = expected
        self._on_waiting = on_waiting
        self._on_long_wait = on_long_wait
        self._on_force_exit = on_force_exit
        self._store = TimedStore(group.store, STORE_TIMEOUT_S)
        self._exchange = Exchange(self._store, group.rank, group.world_size)
        self._self_monitor = SelfMonitor(self._own)
        self._monitor = HeartbeatMonitor(group.members, self._own.rank, host_probes(group.members, group.rank_env))
        self._judges = group.rank in judging_ranks(group.members)
        self._watched = watched_ranks(group.members, group.rank)
        self._every_s = max(HEARTBEAT_EVERY_S, len(group.members) / HEARTBEATS_PER_SECOND)
        self._wants_snapshots = False
        self._parent = os.getppid()
        self._store_answered_at = time.monotonic()
        self._connection_broken = False
        self._reported_waiting_at = self._noted_waiting_at = 0.0
        self._started_at = time.time()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._failure: Failure | None = None

    def __enter__(self) -> Self:
        self._monitor.expect(self._watched)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report to the others why this rank leaves, or find out whose failure made it leave."""
        if error is not None and not isinstance(error, self._expected):
            self._handle_error(error)
        self._closing.set()
        self._thread.join()
        self._store.close()

    def waiting(self, name: str, rank: int) -> AbstractContextManager[None]:
        """For a block in which this rank waits until `rank` has done `name`, for as long as it takes."""
        return self._self_monitor.waiting(name, [rank])

    def check(self) -> None:
        """Raises PeerLost if the run has failed."""
        if (failure := self._failure) is not None:
            waited = self._self_monitor.waits_for
            what = f"rank {self._own.rank} waited for {waited}, but" if waited else f"rank {self._own.rank} leaves:"
            raise PeerLost(f"{what} {failure.message}", advice_for_kind(failure.kind))

    def _handle_error(self, error: BaseException) -> None:
        failure = Failure.from_exception(error, rank=self._own.rank, traceback=traceback.format_exc(), training=True)
        if failure.is_secondary or isinstance(error, GroupError):  # which the loss of another rank may have caused
            self._connection_broken = True
            self._wait_for_cause(is_group=isinstance(error, GroupError))
        if not failure.is_secondary and self._failure is None:
            with suppress(StoreClosed, StoreTimeout):
                self._publish(failure)

    def _wait_for_cause(self, *, is_group: bool) -> None:
        """Until another rank's failure is known; not if all fail to form the `group`, since none of them is lost."""
        give_up = time.monotonic() + FIND_CAUSE_WITHIN_S
        trying = [member.rank for member in self._everyone]
        while trying and self._failure is None and time.monotonic() < give_up:
            if is_group:
                with suppress(StoreClosed, StoreTimeout):
                    self._exchange.set(f"no group/{self._own.rank}")
                    while trying and self._exchange.has(f"no group/{trying[-1]}"):
                        trying.pop()
            time.sleep(0.05)

    # In the watchdog's own thread

    def _watch(self) -> None:
        # a thread begins with GPU 0, where reading NCCL's flight recorder would open a context of 500 MiB for each rank
        with suppress(RuntimeError):  # the main thread meets the same error, and reports it
            device_of(self._rank_env)
        checked_at = time.monotonic()
        while True:
            try:
                self._check_ranks()
                self._store_answered_at = time.monotonic()
            except (StoreClosed, StoreTimeout) as error:
                self._handle_store_error(error)
            if self._failure is not None:
                self._end_process(self._failure)
            if self._closing.wait(self._every_s):
                break
            if (gap_s := time.monotonic() - checked_at - self._every_s) > SILENT_AFTER_S:
                self._monitor.discount(gap_s)  # this process was stopped, or the store was slow to answer
            checked_at = time.monotonic()
        with suppress(StoreClosed, StoreTimeout):
            self._send_heartbeat(has_left=True)

    def _check_ranks(self) -> None:
        own = self._send_heartbeat()
        if (failure := self._exchange.failure()) is not None:
            self._adopt(failure)
            return
        heartbeats = self._receive_heartbeats() if self._watched else {}
        is_broken = self._is_connection_broken()
        if self._judges:
            self._request_snapshots(is_broken or any(each.waits_s >= IDLE_AFTER_S for each in heartbeats.values()))
        if is_broken or own.waits_s >= IDLE_AFTER_S or self._wants_snapshots or self._exchange.has("snapshots"):
            self._exchange.send_snapshot(self._self_monitor.snapshot())
        if self._wants_snapshots:
            self._diagnose(heartbeats, is_broken=is_broken)
        if self._failure is None and (lost := self._monitor.find_lost_rank(connection_broken=is_broken)):
            self._publish(lost)

    def _is_connection_broken(self) -> bool:
        """Whether a connection to another rank broke: here or, for a rank that judges, anywhere."""
        if self._connection_broken:
            self._exchange.set("broken")
            return True
        return self._judges and self._exchange.has("broken")

    def _request_snapshots(self, are_wanted: bool) -> None:
        """Ask all ranks for a snapshot a second, for as long as some rank waits."""
        if are_wanted and not self._exchange.has("snapshots"):
            self._exchange.set("snapshots")
        elif self._wants_snapshots and not are_wanted:
            self._exchange.clear("snapshots")
        self._wants_snapshots = are_wanted

    def _send_heartbeat(self, *, has_left: bool = False) -> Heartbeat:
        heartbeat = self._self_monitor.heartbeat(has_left=has_left)
        self._exchange.send_heartbeat(heartbeat)
        return heartbeat

    def _receive_heartbeats(self) -> dict[int, Heartbeat]:
        """The last heartbeat of every watched rank that has sent one and has not left."""
        heartbeats = self._exchange.heartbeats(self._watched)
        for rank, heartbeat in heartbeats.items():
            if heartbeat.has_left:
                self._monitor.remove(rank)
            elif rank != self._own.rank:
                self._monitor.record(rank, heartbeat.number)
        return {rank: heartbeat for rank, heartbeat in heartbeats.items() if not heartbeat.has_left}

    def _snapshots(self, heartbeats: dict[int, Heartbeat]) -> dict[int, RankSnapshot]:
        """The ranks' snapshots, without those left over from an earlier wait."""
        snapshots = self._exchange.snapshots(heartbeats)
        return {rank: each for rank, each in snapshots.items() if each.heartbeat >= heartbeats[rank].number - 2}

    def _diagnose(self, heartbeats: dict[int, Heartbeat], *, is_broken: bool) -> None:
        """A rank waits: find out whether it waits in vain, and report who waits for whom."""
        snapshots = self._snapshots(heartbeats)
        # Which rank is the odd one out is known only when all have sent a snapshot, except those that never will.
        absent = [r for r in heartbeats if r not in snapshots and not (is_broken and self._monitor.is_late(r))]
        diagnosis = find_mismatch(snapshots) if not absent else None
        waits_s = {rank: heartbeat.waits_s for rank, heartbeat in heartbeats.items()}
        if diagnosis is None and is_any_overdue(snapshots, waits_s, self._own.host):
            diagnosis = find_straggler(snapshots)
        if diagnosis is None and any(each.frozen_s > FROZEN_AFTER_S for each in heartbeats.values()):
            slowest = find_straggler(snapshots)
            diagnosis = slowest if slowest and heartbeats[slowest.rank].frozen_s > FROZEN_AFTER_S else None
        if diagnosis is not None:
            member, stacks = self._everyone[diagnosis.rank], format_stacks(snapshots)[:_MAX_TRACEBACK_CHARS]
            self._publish(failure_of(member, diagnosis.kind, diagnosis.message, stacks))
            return
        rows = [row for row in wait_rows(snapshots) if row["seconds"] >= REPORT_WAITING_AFTER_S]
        is_due = time.monotonic() - self._reported_waiting_at >= REPORT_WAITING_EVERY_S
        if rows and self._on_waiting and is_due:
            self._reported_waiting_at = time.monotonic()
            self._on_waiting(rows)
            self._note_long_wait(rows)

    def _note_long_wait(self, rows: list[WaitRow]) -> None:
        is_long = any(row["seconds"] >= NOTE_LONG_WAIT_EVERY_S for row in rows)
        is_due = time.monotonic() - self._noted_waiting_at >= NOTE_LONG_WAIT_EVERY_S
        if self._on_long_wait and is_long and is_due:
            self._noted_waiting_at = time.monotonic()
            self._on_long_wait(describe_wait(rows))

    def _handle_store_error(self, error: StoreClosed | StoreTimeout) -> None:
        """The store is hosted by the launcher or by rank 0, so always on the machine of rank 0."""
        is_broken = isinstance(error, StoreClosed) or self._connection_broken
        seconds = time.monotonic() - self._store_answered_at
        failure = self._find_lost_launcher(seconds)
        failure = failure or self._monitor.diagnose_store(seconds, connection_broken=is_broken)
        if failure is not None:
            self._adopt(failure)

    def _find_lost_launcher(self, seconds: float) -> Failure | None:
        """The failure if the process that started this one has exited or is stopped, and the store with it."""
        if sys.platform == "win32":
            return None
        if os.getppid() != self._parent:
            fate = "has exited"
        elif is_stopped(self._parent) and seconds > STOPPED_AFTER_S:
            fate = "is stopped (state T)"
        else:
            return None
        text = f"The launcher that started the ranks of {self._own.host} (process {self._parent}) {fate}."
        return failure_of(self._own, "launcher", text)

    def _end_process(self, failure: Failure) -> None:
        """End the process unless it leaves by itself: the main thread may be stuck for ever."""
        if failure.kind == "stopped":
            self._monitor.kill(failure.rank)  # it cannot end itself
        if self._closing.wait(LEAVE_WITHIN_S):
            return
        if self._on_force_exit is not None:
            self._on_force_exit(failure)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code_of(failure.kind))

    # In either thread

    def _publish(self, failure: Failure) -> None:
        """Put a failure into the store unless there is one already, and adopt the one that is there."""
        self._adopt(self._exchange.publish(failure))

    def _adopt(self, failure: Failure) -> None:
        """Record the run's failure on this machine, too, before any of its consequences."""
        if self._folder is not None:
            # another rank's of an earlier start may be there: each machine clears those of its own
            record_failure(self._folder, failure, keep_existing=True, since=self._started_at)
        self._failure = failure


def host_probes(everyone: Sequence[Member], rank_env: RankEnv) -> dict[str, HostProbe]:
    """The machines that this rank probes, by machine id: on rank 0 all others, elsewhere the one that hosts the store.

    Rank 0 probes every machine once, to know which of them answer. A rank may be silent for a while because native code
    holds the GIL; a machine without network or power does not even refuse a connection, so its loss is certain sooner.
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
