"""Waiting for other ranks for as long as their work takes, and noticing within seconds when one has died.

Long work (caching, sampling, saving) is never waited for in a collective, whose time-out would have to be hours.
Every rank's thread counts a heartbeat in the store; who waits looks for the finished work and for the beats.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from modules.config import TrainingError

BEAT_EVERY_S = 1.0
LOOK_EVERY_S = 0.05
DEAD_AFTER_S = 20.0


class PeerLost(TrainingError):
    """Another rank is gone; its own failure is the one to read."""

    kind = "peer_lost"


class Meeting:
    """Where ranks meet after work of unequal length. Close it before the process group ends."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._round = 0
        self._closing = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closing.set()
        self._thread.join()

    def call_off(self, reason: str) -> None:
        """Tell every rank to leave, now that no step begins any more."""
        self._store.set("called_off", reason)

    def called_off(self) -> str:
        """The reason that a rank gave for leaving; empty while nobody did."""
        return self._store.get("called_off").decode() if self._store.check(["called_off"]) else ""

    def lead(self, name: str, work: Callable[[], None], while_waiting: Callable[[], None]) -> None:
        """Rank 0 works, the others wait for it; `while_waiting` is called now and then and may raise."""
        key = self._key(name)
        if self._rank == 0:
            work()
            self._store.set(f"{key}/0", "done")
        else:
            self._wait_for(0, key, name, while_waiting)

    def all(self, name: str, work: Callable[[], None], while_waiting: Callable[[], None]) -> None:
        """Every rank works, then waits for all others; `while_waiting` is called now and then and may raise."""
        key = self._key(name)
        work()
        self._store.set(f"{key}/{self._rank}", "done")
        for rank in range(self._world_size):
            self._wait_for(rank, key, name, while_waiting)

    def gather(self, name: str, text: str, while_waiting: Callable[[], None]) -> list[str]:
        """What every rank has to say, in the order of ranks; all wait for all."""
        key = self._key(name)
        self._store.set(f"{key}/{self._rank}", text)
        for rank in range(self._world_size):
            self._wait_for(rank, key, name, while_waiting)
        return [self._store.get(f"{key}/{rank}").decode() for rank in range(self._world_size)]

    def _key(self, name: str) -> str:
        self._round += 1
        return f"meeting/{self._round}/{name}"

    def _wait_for(self, rank: int, key: str, name: str, while_waiting: Callable[[], None]) -> None:
        last_beat, seen_at = "", time.monotonic()
        while not self._store.check([f"{key}/{rank}"]):
            while_waiting()
            beat = self._store.get(f"beat/{rank}").decode() if self._store.check([f"beat/{rank}"]) else ""
            if beat != last_beat:
                last_beat, seen_at = beat, time.monotonic()
            if time.monotonic() - seen_at > DEAD_AFTER_S:
                raise PeerLost(
                    f"rank {self._rank} waited for rank {rank} ({name}), which gave no sign of life for "
                    f"{DEAD_AFTER_S:.0f} s.",
                    f"Look for rank {rank}'s own error in log/rank-{rank}.txt.",
                )
            time.sleep(LOOK_EVERY_S)

    def _keep_beating(self) -> None:
        while not self._closing.wait(BEAT_EVERY_S):
            try:
                self._beat()
            except RuntimeError:
                return  # the store has gone: the main thread finds out by itself, and says so

    def _beat(self) -> None:
        self._store.set(f"beat/{self._rank}", str(time.monotonic()))
