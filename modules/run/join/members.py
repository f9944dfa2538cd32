"""The machines that have joined a run, as tracked by machine 0, and those that are missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from modules.config import TandemError


class JoinError(TandemError):
    """Machines did not join or were rejected; no process has been started."""

    exit_code = 3
    kind = "process_group"


@dataclass(frozen=True)
class RemoteMachine:
    """Host name and address of another machine, and the address of machine 0 at which it has joined."""

    host: str
    address: str
    joined_at: str = ""

    def __str__(self) -> str:
        return f"{self.host} ({self.address})"


@dataclass
class MemberState:
    """A machine that holds a number of the run; `processes` is set once it is ready to start."""

    machine: RemoteMachine
    processes: int | None = None
    is_asking: bool = False  # its user, for permission
    is_running: bool = False  # from the start until it has reported how its part ended


class Members:
    """The numbers of all machines but machine 0 and who holds them; thread-safe."""

    def __init__(self, machines: int, names: Sequence[str] = ()) -> None:
        """`names` are those of machines that are expected; others may join as well."""
        self._names = names
        self._free = set(range(1, machines))
        self._states: dict[int, MemberState] = {}
        self._changed = threading.Condition()

    def claim(self, machine: RemoteMachine, wanted: int | None, patience_s: float) -> int | None:
        """Claim a free number (`wanted`, or the lowest), waiting for one; None if none becomes free in time."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while not (self._free if wanted is None else self._free & {wanted}):
                if not self._changed.wait(deadline - time.monotonic()):
                    return None
            number = min(self._free) if wanted is None else wanted
            self._free.discard(number)
            self._states[number] = MemberState(machine)
            return number

    def mark_ready(self, number: int, processes: int) -> None:
        """The machine has passed all checks and is ready to start its processes."""
        with self._changed:
            self._states[number].processes = processes
            self._changed.notify_all()

    def mark_asking(self, number: int, *, is_asking: bool) -> None:
        """The machine asks its user for permission, or has an answer."""
        with self._changed:
            self._states[number].is_asking = is_asking

    def release(self, number: int) -> None:
        """The machine has left; its number is free again."""
        with self._changed:
            del self._states[number]
            self._free.add(number)
            self._changed.notify_all()

    def holder(self, number: int) -> str:
        """The machine that holds a number."""
        with self._changed:
            state = self._states.get(number)
            return "unknown" if state is None else str(state.machine)

    def machines(self) -> dict[int, RemoteMachine]:
        """The machines that hold a number, by number."""
        with self._changed:
            return {number: state.machine for number, state in self._states.items()}

    def counts(self) -> dict[int, int]:
        """The process counts of the ready machines, by machine number."""
        with self._changed:
            return {number: state.processes for number, state in self._states.items() if state.processes is not None}

    def wait_until_complete(self, machines: int, within_s: float, check: Callable[[], None]) -> bool:
        """Wait until every machine is ready and none runs.

        `check` is called at least once, and ten times a second, and may raise.
        """
        deadline = time.monotonic() + within_s
        check()
        while len(self.counts()) < machines - 1 or self.is_report_missing():
            if time.monotonic() > deadline:
                return False
            with self._changed:
                self._changed.wait(0.1)
            check()
        return True

    def wait_until_empty(self, within_s: float) -> None:
        """Wait until every machine has left, at most `within_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._states, within_s)

    def mark_started(self, numbers: Collection[int]) -> set[int]:
        """These machines start their processes; returns those that have left meanwhile."""
        with self._changed:
            for number in self._states.keys() & numbers:
                self._states[number].is_running = True
            return set(numbers) - self._states.keys()

    def mark_reported(self, number: int) -> None:
        """The machine has reported how its part ended."""
        with self._changed:
            self._states[number].is_running = False
            self._changed.notify_all()

    def is_running(self, number: int) -> bool:
        """Whether the machine was started and has not reported its end."""
        with self._changed:
            return number in self._states and self._states[number].is_running

    def is_report_missing(self) -> bool:
        """Whether a connected machine has not yet reported how its part ended."""
        with self._changed:
            return any(state.is_running for state in self._states.values())

    def missing(self, *, without: int = 0) -> str:
        """The machines that are not ready, as text: "machine 2", "machines 1, 3 and 4"; "attic and 1 more" by name."""
        numbers = self.missing_numbers(without=without)
        with self._changed:
            ready = {state.machine.host for number, state in self._states.items() if number not in numbers}
        named = [name for name in self._names if name not in ready][: len(numbers)]
        if not named:
            return _machines(numbers)
        unnamed = len(numbers) - len(named)
        return _listed([*named, *[f"{unnamed} more"] * bool(unnamed)])

    def missing_numbers(self, *, without: int = 0) -> list[int]:
        """The numbers of the machines that are not ready, in ascending order."""
        with self._changed:
            checking = [number for number, state in self._states.items() if state.processes is None]
            return sorted({*self._free, *checking} - {without})

    def summary(self) -> str:
        """The joined and the missing machines, in one line."""
        with self._changed:
            ready = [str(state.machine) for _, state in sorted(self._states.items()) if state.processes is not None]
            checking = [
                f"{state.machine}{', which asks its user for permission' * state.is_asking}"
                for _, state in sorted(self._states.items())
                if state.processes is None
            ]
        parts = [f"joined: {', '.join(ready) or 'none'}"]
        parts += [f"still being checked: {', '.join(checking)}"] if checking else []
        return "; ".join([*parts, f"missing: {self.missing() or 'none'}"])


def _machines(numbers: Sequence[int]) -> str:
    if len(numbers) < 2:
        return f"machine {numbers[0]}" if numbers else ""
    return f"machines {_listed(list(map(str, numbers)))}"


def _listed(words: Sequence[str]) -> str:
    """For example "1, 3 and 4"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
