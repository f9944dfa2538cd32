"""From what every rank says of itself to a verdict on a hang: who is stuck where, and who waits for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from modules.distributed.flight import Collective

# Their sizes must be the same on all ranks; those of the others may differ.
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})
STILL_AFTER_S = 3.0


@dataclass(frozen=True)
class Account:
    """What one rank says of itself: where its main thread is, and in which collectives it has taken part."""

    rank: int
    host: str
    beat: int  # the number of the heartbeat that it belongs to
    place: str
    room: str
    still_s: float
    meeting: str  # what it waits for through the store, if it does
    waits_for: tuple[int, ...]
    collectives: tuple[Collective, ...]
    stack: str

    @property
    def whereabouts(self) -> str:
        """For example "in the loader at modules/data/loader.py:152 (_received)"."""
        return " ".join(part for part in (self.room and f"in {self.room}", self.place and f"at {self.place}") if part)

    @property
    def waits_in(self) -> Collective | None:
        """The collective that holds it up: the last it began, if that is not complete."""
        return next((each for each in reversed(self.collectives) if each.waits), None)

    def last_number(self, group: str) -> int | None:
        """How many collectives of a group it has begun; None where it belongs to no such group."""
        return max((each.number for each in self.collectives if each.group == group), default=None)

    def dump(self) -> str:
        """As text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Account:
        """The opposite of `dump`."""
        data = json.loads(text)
        data["collectives"] = tuple(Collective(**each) for each in data["collectives"])
        return cls(**{**data, "waits_for": tuple(data["waits_for"])})


@dataclass(frozen=True)
class Verdict:
    """Which rank holds all others up, and the sentence that says so; `kind` is "hang" or "mismatch"."""

    kind: str
    rank: int
    message: str


class Waiting(TypedDict("Names", {"for": list[int], "in": str})):
    """A row of the `waiting` event."""

    rank: int
    seconds: int
    at: dict[str, str]


def contradiction(accounts: Mapping[int, Account]) -> Verdict | None:
    """Collectives that can never be completed, because the ranks call different ones. None while there is none."""
    return _other_call(accounts) or _crossed(accounts)


def laggard(accounts: Mapping[int, Account]) -> Verdict | None:
    """The rank that the others wait for, directly or through others. None where nobody waits for anybody."""
    waits = {rank: _waits_for(account, accounts) for rank, account in accounts.items()}
    waited_for = set().union(*waits.values())
    stuck = sorted(rank for rank in waited_for if not waits.get(rank) and rank in accounts)
    if not stuck:
        return None
    first = accounts[stuck[0]]
    also = f" (and so {_are(stuck[1:])})" if len(stuck) > 1 else ""
    message = (
        f"Rank {first.rank} on {first.host} is {first.whereabouts or 'in native code'} and has not gone on for "
        f"{first.still_s:.0f} s{also}; {_waiting(accounts, without=stuck)}."
    )
    return Verdict("hang", first.rank, message)


def stacks(accounts: Mapping[int, Account]) -> str:
    """The Python stacks of all ranks, for the log."""
    return "".join(
        f"Rank {rank} on {account.host}, main thread (most recent call last):\n{account.stack}"
        for rank, account in sorted(accounts.items())
    )


def waits(accounts: Mapping[int, Account]) -> list[Waiting]:
    """Every rank that waits at present: for whom, in what, and where those are that it waits for."""
    rows: list[Waiting] = []
    for rank, account in sorted(accounts.items()):
        others = sorted(_waits_for(account, accounts))
        what = account.meeting or str(account.waits_in or "")
        if others and what:
            places = {str(other): accounts[other].whereabouts for other in others if other in accounts}
            row: Waiting = {"rank": rank, "for": others, "in": what, "seconds": round(account.still_s), "at": places}
            rows.append(row)
    return rows


def in_words(rows: Sequence[Waiting]) -> str:
    """Who waits longest, for whom, and where those are: for the person at the terminal."""
    longest = max(rows, key=lambda row: row["seconds"])
    others = [f"rank {rank} ({longest['at'].get(str(rank)) or 'place unknown'})" for rank in longest["for"][:3]]
    more = len(longest["for"]) - len(others)
    text = f"Rank {longest['rank']} has waited {longest['seconds']} s for {', '.join(others)}"
    return f"{text} and {more} more." if more else f"{text}."


def _waits_for(account: Account, accounts: Mapping[int, Account]) -> set[int]:
    if account.waits_for:
        return set(account.waits_for)
    waiting = account.waits_in
    if waiting is None:
        return set()
    behind = {
        rank: last
        for rank, other in accounts.items()
        if rank != account.rank and (last := other.last_number(waiting.group)) is not None
    }
    return {rank for rank, last in behind.items() if last < waiting.number}


def _other_call(accounts: Mapping[int, Account]) -> Verdict | None:
    """The same number of the same group, but another operation or size."""
    calls: dict[tuple[str, int], dict[int, Collective]] = {}
    for rank, account in accounts.items():
        for each in account.collectives:
            calls.setdefault((each.group, each.number), {})[rank] = each
    for _, by_rank in sorted(calls.items(), key=lambda item: min(each.begun for each in item[1].values())):
        shapes = {rank: each.shape if each.name in _SAME_SIZE else each.name for rank, each in by_rank.items()}
        if len(set(shapes.values())) > 1:
            return _odd_one_out(accounts, shapes)
    return None


def _crossed(accounts: Mapping[int, Account]) -> Verdict | None:
    """Ranks that wait in different groups, each for one that has not come to the other's."""
    # Two accounts are never of the same instant: only who has not moved for a while counts.
    waits = {rank: _waits_for(each, accounts) for rank, each in accounts.items() if each.still_s >= STILL_AFTER_S}
    for one, others in waits.items():
        if any(one in waits.get(two, ()) for two in others):
            return _odd_one_out(accounts, {rank: _call(accounts[rank]) for rank in waits})
    return None


def _call(account: Account) -> str:
    collective = account.waits_in
    if account.waits_for or collective is None:
        return account.meeting or "nothing"
    return f"{collective} of group {collective.group}"


def _odd_one_out(accounts: Mapping[int, Account], calls: Mapping[int, str]) -> Verdict:
    """Blame those who do what the fewest do; of two ranks the later one, for want of a better reason."""
    counts = Counter(calls.values())
    odd = min(sorted(calls, reverse=True), key=lambda rank: counts[calls[rank]])
    parts = [
        f"{_ranks([rank for rank, call in calls.items() if call == name])} called {name}"
        for name in sorted(counts, key=lambda name: counts[name])
    ]
    place = accounts[odd].place
    message = f"The ranks called collectives that do not match each other: {', '.join(parts)}."
    return Verdict("mismatch", odd, f"{message[:-1]} (rank {odd} at {place})." if place else message)


def _waiting(accounts: Mapping[int, Account], without: Sequence[int]) -> str:
    reasons: dict[str, list[int]] = {}
    for rank, account in sorted(accounts.items()):
        if rank in without:
            continue
        inside = account.meeting and f"for {account.meeting}"
        if not inside and (collective := account.waits_in) is not None:
            inside = f"in {collective}" + (f" from {account.place}" if account.place else "")
        if inside:
            reasons.setdefault(inside, []).append(rank)
    return "; ".join(
        f"{_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} {reason}" for reason, ranks in reasons.items()
    )


def _are(ranks: Iterable[int]) -> str:
    found = list(ranks)
    return f"{_ranks(found)} {'are' if len(found) > 1 else 'is'}"


def _ranks(ranks: Iterable[int]) -> str:
    *first, last = [str(rank) for rank in ranks]
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"
