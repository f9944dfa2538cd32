"""Who gives no sign of life any more, and what became of it, as far as one can see from here."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from modules.distributed.reach import Reach
from modules.distributed.sign_in import Member, by_host
from modules.run.explanations import explain_kind
from modules.run.failures import Failure

# A machine whose ranks are all silent for so long is down or out of reach.
DEAD_AFTER_S = 20.0
# The same where its system does not answer either.
DEAD_AFTER_CUT_OFF_S = 10.0
# The same where a connection was lost already, so that only the name is missing.
DEAD_AFTER_LOSS_S = 6.0
# A rank whose machine is there, and says nothing bad of its process, may be in native code that lets no thread run.
DEAF_AFTER_S = 45.0
DEAF_AFTER_LOSS_S = 20.0
# How long a process must be stopped (Ctrl-Z, a debugger, SIGSTOP) before the others end.
STOPPED_AFTER_S = 6.0
SILENT_AFTER_S = 3.0
_STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})


class Silence:
    """How long each of the other ranks has been silent; `living` beats are told to it."""

    def __init__(self, everyone: Sequence[Member], own_rank: int, reach: Reach | None = None) -> None:
        self._everyone = everyone
        self._reach = Reach({}) if reach is None else reach
        self._machine = everyone[own_rank].machine_id
        self._beats: dict[int, tuple[int, float]] = {}
        self._neighbours = {
            m.rank for m in everyone if m.machine_id == self._machine and psutil.pid_exists(m.process_id)
        }

    def heard(self, rank: int, beat: int) -> None:
        """The number of the last heartbeat of `rank`."""
        if self._beats.get(rank, (-1, 0.0))[0] != beat:
            self._beats[rank] = beat, time.monotonic()

    def left(self, rank: int) -> None:
        """It said goodbye."""
        self._beats.pop(rank, None)

    def is_silent(self, rank: int) -> bool:
        """Whether it has missed a heartbeat, at least."""
        _, at = self._beats.get(rank, (0, time.monotonic()))
        return time.monotonic() - at > SILENT_AFTER_S / 2

    def forgive(self, seconds: float) -> None:
        """This process itself did not look for so long."""
        self._beats = {rank: (beat, at + seconds) for rank, (beat, at) in self._beats.items()}

    def victim(self, *, mourning: bool) -> Failure | None:
        """The first rank that is lost, with what is known of it. `mourning`: a connection broke already."""
        now = time.monotonic()
        silent = {rank: now - at for rank, (_, at) in self._beats.items() if now - at > SILENT_AFTER_S}
        for rank in sorted(silent):
            if rank in self._neighbours and (found := self._look_at(self._everyone[rank], silent[rank])):
                return found
        for rank in sorted(silent):
            machine = self._everyone[rank].machine_id
            is_down = machine != self._machine and all(each.rank in silent for each in self._on(machine))
            if is_down:
                limit_s = self._patience_s(machine, mourning=mourning)
            else:
                limit_s = DEAF_AFTER_LOSS_S if mourning else DEAF_AFTER_S
            if silent[rank] > limit_s:
                return self._out_of_reach(rank, set(silent), silent[rank])
        return None

    def unreachable_store(self, seconds: float, *, mourning: bool) -> Failure | None:
        """The same where the store does not answer, which is on the machine of rank 0."""
        holder = self._everyone[0]
        if holder.machine_id == self._machine and 0 in self._neighbours and (found := self._look_at(holder, seconds)):
            return found
        if seconds < self._patience_s(holder.machine_id, mourning=mourning):
            return None
        there = {member.rank for member in self._on(holder.machine_id)}
        return self._out_of_reach(0, there, seconds)

    def _patience_s(self, machine: str, *, mourning: bool) -> float:
        """How long a whole machine may be silent."""
        if mourning:
            return DEAD_AFTER_LOSS_S
        return DEAD_AFTER_CUT_OFF_S if self._reach.is_cut_off(machine) else DEAD_AFTER_S

    def process_of(self, rank: int) -> psutil.Process | None:
        """The process of a rank on this machine."""
        if rank not in self._neighbours:
            return None
        try:
            return psutil.Process(self._everyone[rank].process_id)
        except psutil.NoSuchProcess:
            return None

    def _on(self, machine: str) -> list[Member]:
        return [member for member in self._everyone if member.machine_id == machine]

    def _look_at(self, member: Member, seconds: float) -> Failure | None:
        """What the system says of a process of this machine; None where it says nothing bad yet."""
        status = _status(member.process_id)
        who = f"The process of rank {member.rank} ({member.process_id} on {member.host})"
        if status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return _failure(member, "gone", f"{who} has ended in the middle of the run, without an error of its own.")
        if status in _STOPPED and seconds > STOPPED_AFTER_S:
            return _failure(member, "stopped", f"{who} is stopped (state T) and has done nothing for {seconds:.0f} s.")
        if status == psutil.STATUS_DISK_SLEEP and seconds > DEAD_AFTER_S:
            text = f"{who} waits for a disk or network drive (state D) for {seconds:.0f} s and cannot be woken."
            return _failure(member, "stopped", text)
        return None

    def _out_of_reach(self, rank: int, silent: set[int], seconds: float) -> Failure:
        member = self._everyone[rank]
        there = self._on(member.machine_id)
        if member.machine_id == self._machine:
            text = f"Rank {rank} on {member.host} gave no sign of life for {seconds:.0f} s, but its process is there."
            return _failure(member, "stopped", text)
        if {each.rank for each in there} <= silent:
            where = by_host(there).replace(f" on {member.host}", "")
            text = f"Host {member.host} ({where}) gave no sign of life for {seconds:.0f} s"
            text += " and cannot be reached." if self._reach.is_cut_off(member.machine_id) else "."
        else:
            text = f"Rank {rank} on {member.host} gave no sign of life for {seconds:.0f} s."
        return _failure(member, "lost", text)


def is_stopped(process_id: int) -> bool:
    """Whether a process of this machine does nothing until somebody lets it go on."""
    return _status(process_id) in _STOPPED


def _status(process_id: int) -> str:
    try:
        return str(psutil.Process(process_id).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)
    except psutil.Error:
        return ""


def _failure(member: Member, kind: str, message: str) -> Failure:
    return Failure(member.rank, member.host, kind, message, explain_kind(kind))
