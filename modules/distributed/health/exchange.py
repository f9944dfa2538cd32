"""What the watchdogs tell each other through the store. A value that none of them can have written is ignored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TypeVar

from modules.distributed.health.diagnosis import RankSnapshot
from modules.distributed.health.heartbeat import Heartbeat
from modules.distributed.health.timed_store import TimedStore
from modules.distributed.run_store import FaultLog, StoreFault, parse_value
from modules.run.folder.failures import Failure

_SET, _CLEARED = "set", ""

T = TypeVar("T")


class Exchange:
    """One rank's view; every method raises StoreTimeout or StoreClosed."""

    def __init__(self, store: TimedStore, rank: int, world_size: int) -> None:
        self._store = store
        self._rank, self._world_size = rank, world_size
        self._sent: set[str] = set()  # keys of heartbeats and snapshots
        self._faults = FaultLog()

    def has(self, flag: str) -> bool:
        """Whether some rank has set `flag` and none has cleared it since."""
        return self._readable(lambda: self._store.find(flag) not in (None, _CLEARED), instead=False)

    def set(self, flag: str) -> None:
        """Set `flag` for all ranks."""
        self._store.set(flag, _SET)

    def clear(self, flag: str) -> None:
        """Take `flag` back. The key stays: a rank that reads a key while it is removed waits for it."""
        self._store.set(flag, _CLEARED)

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Publish this rank's heartbeat."""
        self._store.set(f"heartbeat/{self._rank}", json.dumps(asdict(heartbeat)))

    def heartbeats(self, ranks: Iterable[int]) -> dict[int, Heartbeat]:
        """The last heartbeat of each of `ranks` that has sent one."""
        return self._read(Heartbeat, "heartbeat", ranks)

    def send_snapshot(self, snapshot: RankSnapshot) -> None:
        """Publish this rank's snapshot."""
        self._store.set(f"snapshot/{self._rank}", json.dumps(asdict(snapshot)))

    def snapshots(self, ranks: Iterable[int]) -> dict[int, RankSnapshot]:
        """The last snapshot of each of `ranks` that has sent one."""
        found = self._read(RankSnapshot, "snapshot", ranks)
        return {rank: snapshot.made_printable() for rank, snapshot in found.items() if snapshot.rank == rank}

    def failure(self) -> Failure | None:
        """The failure that ended the run; None if there is none."""

        def read() -> Failure | None:
            text = self._store.find("failure")
            return None if text is None else self._failure(text)

        return self._readable(read, instead=None)

    def publish(self, failure: Failure) -> Failure:
        """Make `failure` the one that ended the run, unless there is one already; returns that one."""
        text = json.dumps(asdict(failure))
        try:
            return self._failure(self._store.set_if_absent("failure", text))
        except StoreFault as fault:
            self._faults.ignore(fault)
            self._store.set("failure", text)
            return failure

    def _failure(self, text: str) -> Failure:
        failure = parse_value(Failure, text, "the failure")
        if failure.rank >= self._world_size:
            raise StoreFault(f"the failure in the store is of rank {failure.rank} of {self._world_size}.")
        return failure.made_printable()

    def _read(self, kind: type[T], name: str, ranks: Iterable[int]) -> dict[int, T]:
        """The values of those of `ranks` that have sent one; they stay in the store, so all are asked for at once."""
        keys = {rank: f"{name}/{rank}" for rank in ranks}
        self._sent |= {key for key in keys.values() if key not in self._sent and self._store.has(key)}
        keys = {rank: key for rank, key in keys.items() if key in self._sent}
        found: dict[int, T] = {}
        for rank, value in zip(keys, self._store.get_many(list(keys.values())), strict=True):
            try:
                if isinstance(value, StoreFault):
                    raise value
                found[rank] = parse_value(kind, value, f"the {name} of rank {rank}")
            except StoreFault as fault:
                self._faults.ignore(fault)
        return found

    def _readable(self, read: Callable[[], T], *, instead: T) -> T:
        try:
            return read()
        except StoreFault as fault:
            self._faults.ignore(fault)
            return instead
