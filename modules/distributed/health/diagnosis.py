"""Diagnoses a hang from the snapshots of all ranks: which rank is stuck, where, and who waits for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from modules.distributed.formatting import format_ranks
from modules.distributed.health.flight_recorder import Collective
from modules.files import printable
from modules.run.format_duration import in_words

# Their sizes must be the same on all ranks; those of other collectives may differ.
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})
IDLE_AFTER_S = 3.0
_CLOCK_WAS_SET_S = 10.0  # two measures of the same wait differ by less
_MAX_STACK_CHARS = 100_000


@dataclass(frozen=True)
class RankSnapshot:
    """What one rank reports about itself: where its main thread is and which collectives it has started."""

    rank: int
    host: str
    heartbeat: int  # the number of the heartbeat it was taken with
    location: str
    component: str
    idle_s: float
    barrier: str  # what it waits for through the store; empty if it does not
    waits_for: tuple[int, ...]
    collectives: tuple[Collective, ...]
    stack: str

    @property
    def whereabouts(self) -> str:
        """For example "in the loader at modules/data/loading/loader.py:152 (_received)"."""
        words = (self.component and f"in {self.component}", self.location and f"at {self.location}")
        return " ".join(word for word in words if word)

    @property
    def pending_collective(self) -> Collective | None:
        """The last collective it started, if that is still pending."""
        return next((each for each in reversed(self.collectives) if each.pending), None)

    def last_number(self, group: str) -> int | None:
        """How many collectives of a group it has started; None if it does not belong to that group."""
        return max((each.number for each in self.collectives if each.group == group), default=None)

    def made_printable(self) -> RankSnapshot:
        """The same with texts that may be shown, whoever wrote them."""
        return replace(
            self,
            host=printable(self.host),
            location=printable(self.location),
            component=printable(self.component),
            barrier=printable(self.barrier),
            stack=printable(self.stack, _MAX_STACK_CHARS, lines=True),
        )


@dataclass(frozen=True)
class Diagnosis:
    """The rank that blocks all others, and a sentence that explains it; `kind` is "hang" or "mismatch"."""

    kind: str
    rank: int
    message: str


class WaitRow(TypedDict("Names", {"for": list[int], "in": str})):
    """One rank that waits, as a row of the `waiting` event."""

    rank: int
    seconds: int
    at: dict[str, str]


def find_mismatch(snapshots: Mapping[int, RankSnapshot]) -> Diagnosis | None:
    """Collectives that can never complete because ranks called different ones; None if there are none."""
    return _mismatched_call(snapshots) or _crossed_groups(snapshots)


def find_straggler(snapshots: Mapping[int, RankSnapshot]) -> Diagnosis | None:
    """The rank that the others wait for, directly or indirectly; None if no rank waits for another."""
    waits = {rank: _waits_for(snapshot, snapshots) for rank, snapshot in snapshots.items()}
    waited_for = set().union(*waits.values())
    stuck = sorted(rank for rank in waited_for if not waits.get(rank) and rank in snapshots)
    if not stuck:
        return None
    first = snapshots[stuck[0]]
    also = f" (like {format_ranks(stuck[1:])})" if len(stuck) > 1 else ""
    message = (
        f"Rank {first.rank} on {first.host} is {first.whereabouts or 'in native code'} and has made no progress for "
        f"{in_words(first.idle_s)}{also}; {_describe_others(snapshots, without=stuck)}."
    )
    return Diagnosis("hang", first.rank, message)


def format_stacks(snapshots: Mapping[int, RankSnapshot]) -> str:
    """The Python stacks of all ranks, for the log."""
    return "".join(
        f"Rank {rank} on {snapshot.host}, main thread (most recent call last):\n{snapshot.stack}"
        for rank, snapshot in sorted(snapshots.items())
    )


def is_any_overdue(snapshots: Mapping[int, RankSnapshot], waits_s: Mapping[int, float], own_host: str) -> bool:
    """Whether a rank is in a collective that torch is about to end, which would end every rank without a reason.

    `waits_s` is for how long each rank has waited; a more exact time is known of ranks on `own_host`, unless its clock
    was set meanwhile.
    """
    for rank, snapshot in snapshots.items():
        pending = snapshot.pending_collective
        if pending is None or waits_s[rank] < IDLE_AFTER_S:
            continue
        waited_s = waits_s[rank]
        by_clock = time.time() - pending.started
        if snapshot.host == own_host and abs(by_clock - waited_s) < _CLOCK_WAS_SET_S:
            waited_s = by_clock
        if waited_s > pending.timeout_s - min(15.0, pending.timeout_s / 5):
            return True
    return False


def wait_rows(snapshots: Mapping[int, RankSnapshot]) -> list[WaitRow]:
    """Every rank that waits now: for which ranks that do not wait themselves, in what call, and where those are."""
    waits = {rank: _waits_for(snapshot, snapshots) for rank, snapshot in snapshots.items()}
    rows: list[WaitRow] = []
    for rank, snapshot in sorted(snapshots.items()):
        others = sorted(_at_work(rank, waits))
        what = snapshot.barrier or str(snapshot.pending_collective or "")
        if others and what:
            locations = {str(other): snapshots[other].whereabouts for other in others if other in snapshots}
            seconds = round(snapshot.idle_s)
            rows.append({"rank": rank, "for": others, "in": what, "seconds": seconds, "at": locations})
    return rows


def describe_wait(rows: Sequence[WaitRow]) -> str:
    """The longest wait in one sentence for the terminal: which rank, for which ranks, and where those are."""
    longest = max(rows, key=lambda row: row["seconds"])
    others = [f"rank {rank} ({longest['at'].get(str(rank)) or 'location unknown'})" for rank in longest["for"][:3]]
    more = len(longest["for"]) - len(others)
    text = f"Rank {longest['rank']} has waited {in_words(longest['seconds'])} for {', '.join(others)}"
    return f"{text} and {more} more." if more else f"{text}."


def _at_work(rank: int, waits: Mapping[int, set[int]]) -> set[int]:
    """The ranks that keep `rank` waiting in the end: at a barrier all others wait for rank 0, which waits for one."""
    seen, ahead = {rank}, set(waits[rank])
    while ahead:
        seen |= ahead
        ahead = set().union(*(waits.get(other, set()) for other in ahead)) - seen
    return {other for other in seen if not waits.get(other)} or waits[rank]


def _waits_for(snapshot: RankSnapshot, snapshots: Mapping[int, RankSnapshot]) -> set[int]:
    if snapshot.waits_for:
        return set(snapshot.waits_for)
    pending = snapshot.pending_collective
    if pending is None:
        return set()
    last_numbers = {rank: each.last_number(pending.group) for rank, each in snapshots.items() if each is not snapshot}
    return {rank for rank, last in last_numbers.items() if last is not None and last < pending.number}


def _mismatched_call(snapshots: Mapping[int, RankSnapshot]) -> Diagnosis | None:
    """The same sequence number in the same group, but a different operation or size."""
    calls: dict[tuple[str, int], dict[int, Collective]] = {}
    for rank, snapshot in snapshots.items():
        for each in snapshot.collectives:
            calls.setdefault((each.group, each.number), {})[rank] = each
    for _, by_rank in sorted(calls.items(), key=lambda item: min(each.started for each in item[1].values())):
        signatures = {rank: each.signature if each.name in _SAME_SIZE else each.name for rank, each in by_rank.items()}
        if len(set(signatures.values())) > 1:
            return _blame_minority(snapshots, signatures)
    return None


def _crossed_groups(snapshots: Mapping[int, RankSnapshot]) -> Diagnosis | None:
    """Ranks that wait in different groups, each for one that has not reached the other's collective."""
    # No two snapshots are of the same instant, so only ranks that have been idle for a while count.
    waits = {rank: _waits_for(each, snapshots) for rank, each in snapshots.items() if each.idle_s >= IDLE_AFTER_S}
    for one, others in waits.items():
        if any(one in waits.get(two, ()) for two in others):
            return _blame_minority(snapshots, {rank: _call(snapshots[rank]) for rank in waits})
    return None


def _call(snapshot: RankSnapshot) -> str:
    collective = snapshot.pending_collective
    if snapshot.waits_for or collective is None:
        return snapshot.barrier or "nothing"
    return f"{collective} of group {collective.group}"


def _blame_minority(snapshots: Mapping[int, RankSnapshot], calls: Mapping[int, str]) -> Diagnosis:
    """Name a rank whose call is the rarest; in a tie the highest, for lack of a better criterion."""
    counts = Counter(calls.values())
    odd = min(sorted(calls, reverse=True), key=lambda rank: counts[calls[rank]])
    parts = [
        f"{format_ranks([rank for rank, call in calls.items() if call == name])} called {name}"
        for name in sorted(counts, key=lambda name: counts[name])
    ]
    where = f" (rank {odd} at {snapshots[odd].location})" if snapshots[odd].location else ""
    message = f"The ranks called collectives that do not match each other: {', '.join(parts)}{where}."
    return Diagnosis("mismatch", odd, message)


def _describe_others(snapshots: Mapping[int, RankSnapshot], without: Sequence[int]) -> str:
    reasons: dict[str, list[int]] = {}
    for rank, snapshot in sorted(snapshots.items()):
        if rank in without:
            continue
        reason = snapshot.barrier and f"for {snapshot.barrier}"
        if not reason and (collective := snapshot.pending_collective) is not None:
            reason = f"in {collective}" + (f" from {snapshot.location}" if snapshot.location else "")
        if reason:
            reasons.setdefault(reason, []).append(rank)
    return "; ".join(
        f"{format_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} {reason}" for reason, ranks in reasons.items()
    )
