"""Who of a run's machines is here: machine 0 keeps the list, and tells in names who is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from modules.config import TandemError


class JoinError(TandemError):
    """Machines that did not come, or could not be let in; no process has been started."""

    exit_code = 3
    kind = "process_group"


@dataclass(frozen=True)
class Visitor:
    """A machine at the door."""

    host: str
    address: str

    def __str__(self) -> str:
        return f"{self.host} ({self.address})"


@dataclass
class Seat:
    """The place of one machine: who has it, and its processes once it is ready to start."""

    visitor: Visitor
    processes: int | None = None
    has_spoken: bool = False  # has said how its part ended


class RollCall:
    """The seats of all machines but machine 0; every method may be called by any thread."""

    def __init__(self, machines: int) -> None:
        self._free = set(range(1, machines))
        self._seats: dict[int, Seat] = {}
        self._changed = threading.Condition()

    def take(self, visitor: Visitor, wanted: int | None, patience_s: float) -> int | None:
        """A free seat (the `wanted` one, or the first), waited for; None where none becomes free in time."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while not (self._free if wanted is None else self._free & {wanted}):
                if not self._changed.wait(deadline - time.monotonic()):
                    return None
            number = min(self._free) if wanted is None else wanted
            self._free.discard(number)
            self._seats[number] = Seat(visitor)
            return number

    def ready(self, number: int, processes: int) -> None:
        """The machine has passed all checks and would start so many processes."""
        with self._changed:
            self._seats[number].processes = processes
            self._changed.notify_all()

    def leave(self, number: int) -> None:
        """The machine has gone; its seat is free again."""
        with self._changed:
            del self._seats[number]
            self._free.add(number)
            self._changed.notify_all()

    def holder(self, number: int) -> str:
        """Who has a seat."""
        with self._changed:
            seat = self._seats.get(number)
            return "nobody" if seat is None else str(seat.visitor)

    def counts(self) -> dict[int, int]:
        """The processes of the machines that are ready, by number."""
        with self._changed:
            return {number: seat.processes for number, seat in self._seats.items() if seat.processes is not None}

    def wait_until_complete(self, machines: int, within_s: float, look: Callable[[], None]) -> bool:
        """Wait until every machine is ready; `look` is called ten times a second and may raise."""
        deadline = time.monotonic() + within_s
        while len(self.counts()) < machines - 1:
            look()
            if time.monotonic() > deadline:
                return False
            with self._changed:
                self._changed.wait(0.1)
        return True

    def wait_until_empty(self, within_s: float) -> None:
        """Wait until every machine has said goodbye, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._seats, within_s)

    def spoke(self, number: int) -> None:
        """The machine has said how its part ended."""
        with self._changed:
            self._seats[number].has_spoken = True

    def is_anybody_silent(self) -> bool:
        """Whether a machine is here that has not yet said how its part ended."""
        with self._changed:
            return any(not seat.has_spoken for seat in self._seats.values())

    def missing(self, *, without: int = 0) -> str:
        """The machines that are not ready, as people say it: "machine 2", "machines 1, 3 and 4"."""
        with self._changed:
            checking = [number for number, seat in self._seats.items() if seat.processes is None]
            numbers = sorted({*self._free, *checking} - {without})
        return _machines(numbers)

    def summary(self) -> str:
        """Who is here and who is not, in one line."""
        with self._changed:
            ready = [(number, seat) for number, seat in sorted(self._seats.items()) if seat.processes is not None]
            checking = [seat for _, seat in sorted(self._seats.items()) if seat.processes is None]
        parts = [f"joined: {', '.join(f'machine {n} = {s.visitor}' for n, s in ready) or 'nobody'}"]
        parts += [f"still being checked: {', '.join(str(seat.visitor) for seat in checking)}"] if checking else []
        return "; ".join([*parts, f"missing: {self.missing() or 'nobody'}"])


def _machines(numbers: list[int]) -> str:
    if len(numbers) < 2:
        return f"machine {numbers[0]}" if numbers else ""
    return f"machines {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
