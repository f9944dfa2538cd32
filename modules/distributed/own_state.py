"""What this rank shows of itself to the others: a heartbeat a second, and on demand a whole account."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from modules.distributed import flight
from modules.distributed.diagnosis import STILL_AFTER_S, Account
from modules.distributed.sign_in import Member
from modules.distributed.stacks import main_computed_s, main_mark, main_stack


@dataclass(frozen=True)
class Beat:
    """A sign of life: its number, how long the main thread has waited for others, or has done nothing at all."""

    number: int
    waits_s: float = 0.0
    has_left: bool = False
    frozen_s: float = 0.0

    def dump(self) -> str:
        """As text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Beat:
        """The opposite of `dump`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class _Wait:
    """A wait through the store, which may last for hours."""

    name: str
    ranks: tuple[int, ...]
    since: float


class OwnState:
    """Looks at this process from the watchdog's thread; only `waiting` is called by the main thread."""

    def __init__(self, own: Member) -> None:
        self._own = own
        self._beats = 0
        self._wait: _Wait | None = None
        self._mark, self._moved_at = "", time.monotonic()
        self._computed_s, self._froze_at = 0.0, time.monotonic()
        self._collectives: tuple[str, list[flight.Collective]] = "", []

    @contextmanager
    def waiting(self, name: str, ranks: Sequence[int]) -> Iterator[None]:
        """Inside the block this rank waits for `ranks`, which do `name`."""
        before, self._wait = self._wait, _Wait(name, tuple(ranks), time.monotonic())
        try:
            yield
        finally:
            self._wait = before

    @property
    def waits_for(self) -> str:
        """What this rank waits for through the store; empty where it does not."""
        return self._wait.name if self._wait is not None else ""

    def beat(self, *, has_left: bool = False) -> Beat:
        """The next heartbeat."""
        self._beats += 1
        still_s, frozen_s = self._still_s(), self._frozen_s()
        if (wait := self._wait) is not None:
            return Beat(self._beats, time.monotonic() - wait.since, has_left)
        is_held_up = still_s >= STILL_AFTER_S and any(each.waits for each in self._last_collectives())
        return Beat(self._beats, still_s if is_held_up else 0.0, has_left, frozen_s)

    def account(self) -> Account:
        """Everything that a verdict may need."""
        stack, wait = main_stack(), self._wait
        return Account(
            rank=self._own.rank,
            host=self._own.host,
            beat=self._beats,
            place=stack.place,
            room=stack.room,
            still_s=time.monotonic() - (self._moved_at if wait is None else wait.since),
            meeting="" if wait is None else wait.name,
            waits_for=() if wait is None else wait.ranks,
            collectives=tuple(self._last_collectives()),
            stack=stack.text,
        )

    def _last_collectives(self) -> list[flight.Collective]:
        """Read anew only after a change: a full recorder takes a quarter of a second."""
        counters = flight.counters()
        if counters != self._collectives[0]:
            self._collectives = counters, flight.last_collectives()
        return self._collectives[1]

    def _still_s(self) -> float:
        """How long the main thread has neither moved nor begun or completed a collective."""
        mark = f"{main_mark()} {flight.counters()}"
        if mark != self._mark:
            self._mark, self._moved_at = mark, time.monotonic()
        return time.monotonic() - self._moved_at

    def _frozen_s(self) -> float:
        """How long the main thread has not been on a processor at all: work of hours is, now and then."""
        computed_s = main_computed_s()
        if computed_s != self._computed_s:
            self._computed_s, self._froze_at = computed_s, time.monotonic()
        return time.monotonic() - self._froze_at
