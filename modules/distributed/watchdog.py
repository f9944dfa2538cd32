"""One thread a rank that shows a sign of life, watches those of the others, and ends a run that cannot go on.

A rank that dies, stops or hangs must not leave the others waiting, and all must tell the same cause. So each rank's
watchdog puts a heartbeat into the store; whoever sees that a rank is lost, or that all wait for one that does not
come, puts a verdict there, and so does a rank that fails by itself. The first verdict counts. It reaches every
machine before the connections break, so that what follows from it is not taken for the cause.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from types import TracebackType
from typing import Self

import psutil

from modules.config import TrainingError
from modules.distributed import flight
from modules.distributed.diagnosis import (
    STILL_AFTER_S,
    Account,
    Verdict,
    Waiting,
    contradiction,
    in_words,
    laggard,
    stacks,
    waits,
)
from modules.distributed.loss import SILENT_AFTER_S, STOPPED_AFTER_S, Silence, is_stopped
from modules.distributed.own_state import Beat, OwnState
from modules.distributed.process_group import Group
from modules.distributed.reach import Reach
from modules.distributed.timed_store import StoreGone, StoreSilent, TimedStore
from modules.run.exit_codes import exit_code_of
from modules.run.explanations import explain_kind
from modules.run.failures import Failure, record_failure
from modules.run.run_folder import RunFolder

BEAT_EVERY_S = 1.0
ANSWER_WITHIN_S = 3.0
# How long a rank whose error is only the echo of another's looks for the cause.
CAUSE_WITHIN_S = 10.0
# How long the main thread may take to leave by itself, once there is a verdict.
LEAVE_WITHIN_S = 3.0
TELL_WAITING_AFTER_S = 5.0
TELL_WAITING_EVERY_S = 10.0
NOTE_WAITING_EVERY_S = 60.0
# Work that others wait for may take hours, but its main thread computes, reads or writes now and then.
FROZEN_AFTER_S = 1800.0
_LONGEST_TRACEBACK = 30_000


class PeerLost(TrainingError):
    """Another rank is gone; its own failure is the one to read."""

    kind = "peer_lost"


class Watchdog:
    """Guards the block it is entered for; enter it inside the process group's."""

    def __init__(
        self,
        group: Group,
        folder: RunFolder | None = None,
        *,
        wished: tuple[type[BaseException], ...] = (),
        tell_waiting: Callable[[list[Waiting]], None] | None = None,
        note: Callable[[str], None] | None = None,
        last_words: Callable[[Failure], None] | None = None,
    ) -> None:
        """Verdicts are recorded in `folder`. Exceptions of the kinds `wished` are no failures.

        `tell_waiting` hears now and then who waits for whom, `note` the same in words where it takes minutes,
        `last_words` why this process is ended by force.
        """
        self._everyone = group.members
        self._own = group.members[group.place.rank]
        self._folder = folder
        self._wished = wished
        self._tell_waiting = tell_waiting
        self._note = note
        self._last_words = last_words
        self._store = TimedStore(group.store, ANSWER_WITHIN_S)
        self._state = OwnState(self._own)
        self._silence = Silence(group.members, self._own.rank, Reach.of(group.members, group.place))
        self._every_s = max(BEAT_EVERY_S, len(group.members) / 256)
        self._known: set[int] = set()
        self._parent = os.getppid()
        self._answered_at = time.monotonic()
        self._mourning = False
        self._told_waiting_at = self._noted_waiting_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._verdict: Failure | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the others why this rank leaves, or find out whose failure made it leave."""
        if error is not None and not isinstance(error, self._wished):
            self._leave_failing(error)
        self._closing.set()
        self._thread.join()
        self._store.close()

    def waiting(self, name: str, rank: int) -> AbstractContextManager[None]:
        """For a block in which this rank waits, for as long as it takes, until `rank` has done `name`."""
        return self._state.waiting(name, [rank])

    def check(self) -> None:
        """Raise PeerLost where there is a verdict on the run."""
        if (verdict := self._verdict) is not None:
            waited = self._state.waits_for
            what = f"rank {self._own.rank} waited for {waited}, but" if waited else f"rank {self._own.rank} leaves:"
            raise PeerLost(f"{what} {verdict.message}", explain_kind(verdict.kind))

    def _leave_failing(self, error: BaseException) -> None:
        failure = Failure.of(error, rank=self._own.rank, traceback=traceback.format_exc(), training=True)
        if not failure.is_echo:
            with suppress(StoreGone, StoreSilent):
                self._conclude(failure)
            return
        self._mourning = True
        give_up = time.monotonic() + CAUSE_WITHIN_S
        while self._verdict is None and time.monotonic() < give_up:
            time.sleep(0.05)

    # In the watchdog's own thread

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while True:
            try:
                self._look()
                self._answered_at = time.monotonic()
            except (StoreGone, StoreSilent) as error:
                self._miss_store(error)
            if self._verdict is not None:
                self._end_process(self._verdict)
            if self._closing.wait(self._every_s):
                break
            if (gap_s := time.monotonic() - looked_at - self._every_s) > SILENT_AFTER_S:
                self._silence.forgive(gap_s)  # this process was stopped, or the store was slow to answer
            looked_at = time.monotonic()
        with suppress(StoreGone, StoreSilent):
            self._show_life(has_left=True)

    def _look(self) -> None:
        own = self._show_life()
        if self._store.known("verdict"):
            self._accept(self._store.get("verdict"))
            return
        beats = self._hear()
        if self._mourning or any(beat.waits_s >= STILL_AFTER_S for beat in beats.values()):
            self._store.set(f"account/{self._own.rank}", self._state.account().dump())
            if self._mourning or own.waits_s >= STILL_AFTER_S or self._tell_waiting is not None:
                self._judge(beats, own)
        if self._verdict is None and (victim := self._silence.victim(mourning=self._mourning)):
            self._conclude(victim)

    def _show_life(self, *, has_left: bool = False) -> Beat:
        beat = self._state.beat(has_left=has_left)
        self._store.set(f"beat/{self._own.rank}", beat.dump())
        return beat

    def _hear(self) -> dict[int, Beat]:
        """The last heartbeat of every rank that has shown one and has not left."""
        for member in self._everyone:
            if member.rank not in self._known and self._store.known(f"beat/{member.rank}"):
                self._known.add(member.rank)
        ranks = sorted(self._known)
        texts = self._store.get_many([f"beat/{rank}" for rank in ranks])
        beats = {rank: Beat.load(text) for rank, text in zip(ranks, texts, strict=True)}
        for rank, beat in beats.items():
            if beat.has_left:
                self._silence.left(rank)
            elif rank != self._own.rank:
                self._silence.heard(rank, beat.number)
        return {rank: beat for rank, beat in beats.items() if not beat.has_left}

    def _accounts(self, beats: dict[int, Beat]) -> dict[int, Account]:
        """What the ranks say of themselves, where it is not of an earlier wait."""
        ranks = [rank for rank in beats if self._store.known(f"account/{rank}")]
        texts = self._store.get_many([f"account/{rank}" for rank in ranks]) if ranks else []
        accounts = {rank: Account.load(text) for rank, text in zip(ranks, texts, strict=True)}
        return {rank: each for rank, each in accounts.items() if each.beat >= beats[rank].number - 2}

    def _judge(self, beats: dict[int, Beat], own: Beat) -> None:
        """Somebody waits: find out whether in vain, and tell who for whom."""
        accounts = self._accounts(beats)
        # Who is the odd one out is known only when all have spoken, but for those who never will.
        absent = [r for r in beats if r not in accounts and not (self._mourning and self._silence.is_silent(r))]
        verdict = contradiction(accounts) if not absent else None
        mine = accounts.get(self._own.rank)
        waits_in = mine.waits_in if mine is not None else None
        patience_s = _patience_s(waits_in.timeout_s) if waits_in else 0.0
        if verdict is None and waits_in and own.waits_s >= STILL_AFTER_S and flight.age_s(waits_in) > patience_s:
            verdict = laggard(accounts)
        if verdict is None and any(beat.frozen_s > FROZEN_AFTER_S for beat in beats.values()):
            slowest = laggard(accounts)
            verdict = slowest if slowest and beats[slowest.rank].frozen_s > FROZEN_AFTER_S else None
        if verdict is not None:
            self._conclude(self._failure_of(verdict, accounts))
            return
        rows = [row for row in waits(accounts) if row["seconds"] >= TELL_WAITING_AFTER_S]
        if rows and self._tell_waiting and time.monotonic() - self._told_waiting_at >= TELL_WAITING_EVERY_S:
            self._told_waiting_at = time.monotonic()
            self._tell_waiting(rows)
            self._note_waiting(rows)

    def _note_waiting(self, rows: list[Waiting]) -> None:
        is_long = any(row["seconds"] >= NOTE_WAITING_EVERY_S for row in rows)
        if self._note and is_long and time.monotonic() - self._noted_waiting_at >= NOTE_WAITING_EVERY_S:
            self._noted_waiting_at = time.monotonic()
            self._note(in_words(rows))

    def _failure_of(self, verdict: Verdict, accounts: dict[int, Account]) -> Failure:
        host = self._everyone[verdict.rank].host
        trace = stacks(accounts)[:_LONGEST_TRACEBACK]
        return Failure(verdict.rank, host, verdict.kind, verdict.message, explain_kind(verdict.kind), trace)

    def _miss_store(self, error: StoreGone | StoreSilent) -> None:
        """The store is in the launcher or in rank 0: on the machine of rank 0 in every case."""
        is_gone, seconds = isinstance(error, StoreGone), time.monotonic() - self._answered_at
        failure = self._lost_launcher(seconds)
        if failure is None:
            failure = self._silence.unreachable_store(seconds, mourning=is_gone or self._mourning)
        if failure is not None:
            self._accept(json.dumps(asdict(failure)))

    def _lost_launcher(self, seconds: float) -> Failure | None:
        """Where the process that started this one has ended or is stopped, and the store with it."""
        if sys.platform == "win32":
            return None
        if os.getppid() != self._parent:
            fate = "has ended"
        elif is_stopped(self._parent) and seconds > STOPPED_AFTER_S:
            fate = "is stopped (state T)"
        else:
            return None
        text = f"The launcher that started the ranks of {self._own.host} (process {self._parent}) {fate}."
        return Failure(self._own.rank, self._own.host, "launcher", text, explain_kind("launcher"))

    def _end_process(self, verdict: Failure) -> None:
        """The main thread may be stuck for ever: end the process, unless it leaves by itself."""
        process = self._silence.process_of(verdict.rank) if verdict.kind == "stopped" else None
        if process is not None:
            with suppress(psutil.Error):
                process.kill()  # it cannot end itself
        if self._closing.wait(LEAVE_WITHIN_S):
            return
        if self._last_words is not None:
            self._last_words(verdict)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code_of(verdict.kind))

    # In whichever thread finds out

    def _conclude(self, failure: Failure) -> None:
        """Put a verdict into the store, unless there is one already, and accept the one that is there."""
        self._accept(self._store.set_first("verdict", json.dumps(asdict(failure))))

    def _accept(self, text: str) -> None:
        """Write the verdict down on this machine, too, before anything that follows from it."""
        failure = Failure(**json.loads(text))
        if self._folder is not None:
            record_failure(self._folder, failure, unless_there=True)
        self._verdict = failure


def _patience_s(timeout_s: float) -> float:
    """Somewhat less than torch's own time-out, which would end every rank without saying why."""
    return timeout_s - min(15.0, timeout_s / 5)
