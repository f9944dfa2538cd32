"""Finds ranks whose heartbeats have stopped and says, as far as it can be seen from here, what happened to them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from modules.distributed.startup.host_probe import HostProbe
from modules.distributed.startup.member import Member, ranks_by_host
from modules.run.folder.error_rules import advice_for_kind
from modules.run.folder.failures import Failure
from modules.run.format_duration import in_words
from modules.run.join.keys import STORE_SECRET
from modules.run.supervise.process_tree import START_TOKEN

# A machine is lost if all its ranks have been silent for so long.
DEAD_AFTER_S = 20.0
# The same if its operating system does not answer either.
DEAD_AFTER_UNREACHABLE_S = 10.0
# The same if a connection has broken already, so that only the culprit's name is missing.
DEAD_AFTER_BROKEN_CONNECTION_S = 6.0
# A silent rank whose machine is alive, and whose process looks healthy, may be in native code that holds the GIL.
UNRESPONSIVE_AFTER_S = 45.0
UNRESPONSIVE_AFTER_BROKEN_CONNECTION_S = 20.0
# How long a process must be stopped (Ctrl-Z, a debugger, SIGSTOP) before the others end.
STOPPED_AFTER_S = 6.0
SILENT_AFTER_S = 3.0
_STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
# What all processes of one start, or one rank of it, have in their environment when they begin.
_OF_THE_START = (START_TOKEN, STORE_SECRET)
_OF_THE_RANK = ("WORLD_SIZE", "MASTER_PORT")


class HeartbeatMonitor:
    """Tracks when each of the other ranks last sent a new heartbeat."""

    def __init__(self, everyone: Sequence[Member], own_rank: int, probes: Mapping[str, HostProbe]) -> None:
        """`probes`: the other machines that this rank can probe, by machine id."""
        self._everyone = everyone
        self._own_rank, self._probes = own_rank, probes
        self._machine = everyone[own_rank].machine_id
        self._last: dict[int, tuple[int, float]] = {}  # rank -> number of its last heartbeat, when it arrived
        self._processes = rank_processes(everyone, own_rank)

    def expect(self, ranks: Sequence[int]) -> None:
        """From now on the first heartbeats of these ranks are waited for; all of them have joined."""
        self._last = {rank: (0, time.monotonic()) for rank in ranks if rank != self._own_rank}

    def record(self, rank: int, number: int) -> None:
        """Note the number of the last heartbeat of `rank`."""
        if self._last.get(rank, (-1, 0.0))[0] != number:
            self._last[rank] = number, time.monotonic()

    def remove(self, rank: int) -> None:
        """Stop watching a rank that has left."""
        self._last.pop(rank, None)

    def is_late(self, rank: int) -> bool:
        """Whether it has missed at least one heartbeat."""
        _, at = self._last.get(rank, (0, time.monotonic()))
        return time.monotonic() - at > SILENT_AFTER_S / 2

    def discount(self, seconds: float) -> None:
        """Do not count the last `seconds`, in which this process itself did not look."""
        self._last = {rank: (number, at + seconds) for rank, (number, at) in self._last.items()}

    def find_lost_rank(self, *, connection_broken: bool) -> Failure | None:
        """The first rank that is lost, and what is known of it; `connection_broken`: its loss is certain already."""
        now = time.monotonic()
        silent = {rank: now - at for rank, (_, at) in self._last.items() if now - at > SILENT_AFTER_S}
        for rank in sorted(silent):
            if found := self._check_process(self._everyone[rank], silent[rank]):
                return found
        for rank in sorted(silent):
            machine = self._everyone[rank].machine_id
            is_down = machine != self._machine and all(each.rank in silent for each in self._on(machine))
            if is_down:
                limit_s = self._machine_timeout_s(machine, connection_broken=connection_broken)
            else:
                limit_s = UNRESPONSIVE_AFTER_BROKEN_CONNECTION_S if connection_broken else UNRESPONSIVE_AFTER_S
            if silent[rank] > limit_s:
                return self._lost(rank, set(silent), silent[rank])
        return None

    def diagnose_store(self, seconds: float, *, connection_broken: bool) -> Failure | None:
        """The failure if the store, which is on the machine of rank 0, has not answered for `seconds`."""
        host = self._everyone[0]
        if found := self._check_process(host, seconds):
            return found
        probe = self._probes.get(host.machine_id)
        if probe is not None:
            probe.start()
        if seconds < self._machine_timeout_s(host.machine_id, connection_broken=connection_broken):
            return None
        if probe is not None and probe.refuses:
            text = f"Host {host.host} can be reached, but its processes of this run have ended without a word: they "
            text += "were killed, or the machine was restarted."
            return failure_of(host, "gone", text)
        return self._lost(0, {member.rank for member in self._on(host.machine_id)}, seconds)

    def kill(self, rank: int) -> None:
        """Kill the process of a rank if it is on this machine."""
        if rank in self._processes:
            with suppress(psutil.Error):
                self._processes[rank].kill()

    def _machine_timeout_s(self, machine: str, *, connection_broken: bool) -> float:
        """How long a whole machine may be silent."""
        if connection_broken:
            return DEAD_AFTER_BROKEN_CONNECTION_S
        return DEAD_AFTER_UNREACHABLE_S if self._is_unreachable(machine) else DEAD_AFTER_S

    def _is_unreachable(self, machine: str) -> bool:
        probe = self._probes.get(machine)
        return probe is not None and probe.is_unreachable()

    def _on(self, machine: str) -> list[Member]:
        return [member for member in self._everyone if member.machine_id == machine]

    def _check_process(self, member: Member, seconds: float) -> Failure | None:
        """The failure that the operating system shows for a process of this machine; None if it shows none yet."""
        process = self._processes.get(member.rank)
        if process is None:
            return None
        status = _status(process)
        who = f"The process of rank {member.rank} ({member.process_id} on {member.host})"
        if status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return failure_of(member, "gone", f"{who} exited during the run without reporting an error.")
        if status in _STOPPED and seconds > STOPPED_AFTER_S:
            return failure_of(
                member, "stopped", f"{who} is stopped (state T) and has been idle for {in_words(seconds)}."
            )
        if status == psutil.STATUS_DISK_SLEEP and seconds > DEAD_AFTER_S:
            text = (
                f"{who} has waited for a disk or network drive for {in_words(seconds)} (state D) and cannot be woken."
            )
            return failure_of(member, "stopped", text)
        return None

    def _lost(self, rank: int, silent: set[int], seconds: float) -> Failure:
        member = self._everyone[rank]
        there = self._on(member.machine_id)
        if member.machine_id == self._machine:
            text = f"Rank {rank} on {member.host} sent no heartbeat for {in_words(seconds)}, but its process exists."
            return failure_of(member, "stopped", text)
        if {each.rank for each in there} <= silent:
            ranks = ranks_by_host(there).replace(f" on {member.host}", "")
            text = f"Host {member.host} ({ranks}) sent no heartbeat for {in_words(seconds)}"
            text += " and cannot be reached." if self._is_unreachable(member.machine_id) else "."
        else:
            text = f"Rank {rank} on {member.host} sent no heartbeat for {in_words(seconds)}."
        return failure_of(member, "lost", text)


def is_stopped(process_id: int) -> bool:
    """Whether a process of this machine is suspended."""
    with suppress(psutil.NoSuchProcess):
        return _status(psutil.Process(process_id)) in _STOPPED
    return False


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status() if process.is_running() else psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)
    except psutil.Error:
        return ""


def failure_of(member: Member, kind: str, message: str, trace: str = "") -> Failure:
    """The failure of a rank, with the advice for its kind."""
    return Failure(member.rank, member.host, kind, message, advice_for_kind(kind), trace)


def rank_processes(everyone: Sequence[Member], own_rank: int) -> dict[int, psutil.Process]:
    """The process of each rank on this machine, by rank, unless the process that it names is another program's.

    Only these are looked at or killed: another rank names its process id, and it may name any.
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
