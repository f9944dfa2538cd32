"""Waiting for other ranks for as long as their work takes, and noticing within seconds when one has died.

Long work (caching, sampling, saving) is never waited for in a collective, whose time-out would have to be hours.
Who waits looks in the store for the finished work, and asks its watchdog whether the run can still go on.

Whether a meeting takes place or was called off is decided once: no rank goes on where another has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from modules.distributed.watchdog import Watchdog

LOOK_EVERY_S = 0.05
_GO_ON = "go on"


class Meeting:
    """Where ranks meet after work of unequal length."""

    def __init__(self, store: Store, rank: int, world_size: int, watchdog: Watchdog) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._watchdog = watchdog
        self._round = 0

    def call_off(self, reason: str) -> bool:
        """Tell every rank to leave at the present meeting; False where it has taken place and all go on."""
        return self._decide(reason) == reason

    def called_off(self) -> str:
        """The reason that a rank gave for leaving at the present meeting; empty while nobody did."""
        key = self._decision
        decided = self._store.get(key).decode() if self._store.check([key]) else ""
        return "" if decided == _GO_ON else decided

    def lead(self, name: str, work: Callable[[], None], while_waiting: Callable[[], None]) -> None:
        """Rank 0 works, the others wait for it; `while_waiting` is called now and then and may raise."""
        key = self._key(name)
        if self._rank == 0:
            work()
            self._store.set(f"{key}/0", "done")
        else:
            self._wait_for(0, key, name, while_waiting)
        self._go_on(while_waiting)

    def all(self, name: str, work: Callable[[], None], while_waiting: Callable[[], None]) -> None:
        """Every rank works, then waits for all others; `while_waiting` is called now and then and may raise."""
        key = self._key(name)
        work()
        self._store.set(f"{key}/{self._rank}", "done")
        for rank in range(self._world_size):
            self._wait_for(rank, key, name, while_waiting)
        self._go_on(while_waiting)

    def gather(self, name: str, text: str, while_waiting: Callable[[], None]) -> list[str]:
        """What every rank tells, by rank; `while_waiting` is called now and then and may raise."""
        key = self._key(name)
        self._store.set(f"{key}/{self._rank}", text)
        for rank in range(self._world_size):
            self._wait_for(rank, key, name, while_waiting)
        self._go_on(while_waiting)
        return [told.decode() for told in self._store.multi_get([f"{key}/{r}" for r in range(self._world_size)])]

    @property
    def _decision(self) -> str:
        return f"meeting/{self._round}/decision"

    def _decide(self, word: str) -> str:
        """What the first rank said that decided on this meeting: the same for all."""
        return self._store.compare_set(self._decision, "", word).decode()

    def _go_on(self, while_waiting: Callable[[], None]) -> None:
        """All are there; unless one has called it off meanwhile, which `while_waiting` finds out."""
        if self._decide(_GO_ON) != _GO_ON:
            while_waiting()

    def _key(self, name: str) -> str:
        self._round += 1
        return f"meeting/{self._round}/{name}"

    def _wait_for(self, rank: int, key: str, name: str, while_waiting: Callable[[], None]) -> None:
        with self._watchdog.waiting(f"rank {rank} ({name})", rank):
            while not self._store.check([f"{key}/{rank}"]):
                while_waiting()
                self._watchdog.check()
                time.sleep(LOOK_EVERY_S)
