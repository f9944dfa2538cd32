"""Load, memory, temperature and power of every host, read by a thread of its first rank and handed to rank 0."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeAlias

import psutil
from torch._C._distributed_c10d import Store

from modules.distributed.rank_facts import RankFacts
from modules.distributed.roster import Roster
from modules.distributed.timed_store import StoreGone, StoreSilent, TimedStore
from modules.machine import gpu_load, memory_mib, visible_gpus

READ_EVERY_S = 2.0
_STORE_ANSWERS_S = 10.0

Reading: TypeAlias = Mapping[str, float | None]  # name of a figure with its unit -> value


class Readings:
    """The newest readings by rank, as far as they have come; complete on rank 0 only."""

    def __init__(self, roster: Roster, rank: int, store: Store | None = None) -> None:
        self._firsts = [ranks[0].rank for ranks in roster.hosts.values()]
        self._here = next(ranks for ranks in roster.hosts.values() if rank in [row.rank for row in ranks])
        self._rank = rank
        self._store = None if store is None else TimedStore(store, _STORE_ANSWERS_S)
        self._latest: dict[int, Reading] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_reading, name="readings", daemon=True)
        if rank in self._firsts:
            self._thread.start()

    def latest(self) -> Mapping[int, Reading]:
        """The newest reading of each rank."""
        return self._latest

    def close(self) -> None:
        """End the thread; nothing is read any more."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._store is not None:
            self._store.close()

    def _keep_reading(self) -> None:
        psutil.cpu_percent(None)  # the first call has nothing to compare with
        while not self._closing.wait(READ_EVERY_S):
            own = read_host(self._here)
            try:
                self._latest = {**own, **self._exchanged(own)}
            except (StoreGone, StoreSilent):
                return  # the main thread finds out by itself, and says so

    def _exchanged(self, own: Mapping[int, Reading]) -> dict[int, Reading]:
        """Put this host's readings into the store; rank 0 takes the others' from there."""
        if self._store is None:
            return {}
        if self._rank != 0:
            self._store.set(f"readings/{self._rank}", json.dumps(own))
            return {}
        found: dict[int, Reading] = {}
        for key in (f"readings/{first}" for first in self._firsts if first != 0):
            if self._store.known(key):
                found.update({int(rank): reading for rank, reading in json.loads(self._store.get(key)).items()})
        return found


def read_host(ranks: list[RankFacts]) -> dict[int, Reading]:
    """What NVML and the system say now of this machine, for each of its ranks."""
    memory = memory_mib()
    host = {"cpu_percent": psutil.cpu_percent(None), "ram_used_mib": float(memory.total - memory.available)}
    loads = gpu_load(visible_gpus()) if ranks[0].on_gpu else []
    found: dict[int, Reading] = {}
    for row in ranks:
        number = int(row.device.partition(":")[2] or 0)
        load = asdict(loads[number]) if row.on_gpu and number < len(loads) else {}
        found[row.rank] = {**host, **load}
    return found


@contextmanager
def readings(roster: Roster, rank: int, store: Store | None = None) -> Iterator[Readings]:
    """Readings for the length of a `with` block."""
    reading = Readings(roster, rank, store)
    try:
        yield reading
    finally:
        reading.close()
