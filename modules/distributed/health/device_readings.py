"""What every host's devices and processes do, read by a thread of its first rank and sent to rank 0."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

import psutil

from modules.distributed.health.timed_store import StoreClosed, StoreTimeout, TimedStore
from modules.distributed.run_store import FaultLog, RunStore, StoreFault, parse_value
from modules.distributed.startup.cluster_info import ClusterInfo
from modules.distributed.startup.rank_info import RankInfo
from modules.files import printable
from modules.machine import (
    Gpu,
    NetworkLoad,
    ProcessLoad,
    gpu_load,
    installed_gpus,
    memory_mib,
    mig_device,
    spills_to_host,
    visible_gpus,
)

READ_EVERY_S = 2.0
_STORE_TIMEOUT_S = 10.0

# metric name with its unit -> value; None if the driver does not offer it; text for `slowdown` and `fault`
Reading: TypeAlias = Mapping[str, float | str | None]
_MAX_CHARS = 200


class Readings:
    """The latest readings by rank; complete only on rank 0."""

    def __init__(self, cluster_info: ClusterInfo, rank: int, store: RunStore | None = None) -> None:
        self._ranks_of = {ranks[0].rank: [row.rank for row in ranks] for ranks in cluster_info.hosts.values()}
        self._first_ranks = list(self._ranks_of)
        self._local_ranks = cluster_info.hosts[cluster_info.rows[rank].host]
        self._rank = rank
        self._store = None if store is None else TimedStore(store, _STORE_TIMEOUT_S)
        self._latest: dict[int, Reading] = {}
        self._faults = FaultLog()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="readings", daemon=True)
        if rank in self._first_ranks:
            self._thread.start()

    def latest(self) -> Mapping[int, Reading]:
        """The latest reading of each rank."""
        return self._latest

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._store is not None:
            self._store.close()

    def _poll(self) -> None:
        reader = HostReader(self._local_ranks)
        while not self._closing.wait(READ_EVERY_S):
            own = reader.read()
            try:
                self._latest = {**own, **self._exchange(own)}
            except (StoreClosed, StoreTimeout):
                return  # the main thread notices and reports it itself

    def _exchange(self, own: Mapping[int, Reading]) -> dict[int, Reading]:
        """Put this host's readings into the store; rank 0 gets the others' from there."""
        if self._store is None:
            return {}
        if self._rank != 0:
            self._store.set(f"readings/{self._rank}", json.dumps(own))
            return {}
        found: dict[int, Reading] = {}
        for first in self._first_ranks[1:]:
            try:
                found |= self._readings_of(self._store, first)
            except StoreFault as fault:
                self._faults.ignore(fault)
        return found

    def _readings_of(self, store: TimedStore, first: int) -> dict[int, Reading]:
        """What the first rank of another host has sent; {} before it has."""
        text = store.find(f"readings/{first}")
        if text is None:
            return {}
        sent = parse_value(dict[str, dict[str, float | str | None]], text, f"the readings of rank {first}")
        return {rank: _printable(sent[str(rank)]) for rank in self._ranks_of[first] if str(rank) in sent}


class HostReader:
    """Reads this machine for each of its ranks, from NVML and the operating system."""

    def __init__(self, ranks: Sequence[RankInfo]) -> None:
        every = installed_gpus() if ranks[0].on_gpu else []
        self._gpus = {row.rank: _gpu_of(row, every) for row in ranks if row.on_gpu}
        self._processes = {row.rank: ProcessLoad(row.process_id) for row in ranks}
        self._network = NetworkLoad()
        psutil.cpu_percent(None)  # the first call has no interval to measure
        self.read()

    def read(self) -> dict[int, Reading]:
        """The current readings by rank; rates are those since the last call."""
        memory = memory_mib()
        host = {"cpu_percent": psutil.cpu_percent(None), "ram_used_mib": float(memory.total - memory.available)}
        host |= self._network.read()
        if self._gpus and spills_to_host():
            host["spills_to_host"] = 1.0
        known = [gpu for gpu in self._gpus.values() if gpu is not None]
        loads = dict(zip((gpu.uuid or gpu.index for gpu in known), gpu_load(known), strict=False))
        found: dict[int, Reading] = {}
        for rank, process in self._processes.items():
            gpu = self._gpus.get(rank)
            load = None if gpu is None else loads.get(gpu.uuid or gpu.index)
            found[rank] = {**host, **process.read(), **({} if load is None else asdict(load))}
        return found


def _printable(reading: Reading) -> Reading:
    """Texts of another host without control characters."""
    return {name: printable(each, _MAX_CHARS) if isinstance(each, str) else each for name, each in reading.items()}


def _gpu_of(row: RankInfo, every: Sequence[Gpu]) -> Gpu | None:
    """The GPU of a rank; None if this process cannot see it.

    Not by its number: under Slurm each task may see one GPU, so that all of them call theirs cuda:0.
    """
    if row.gpu_uuid:
        found = next((gpu for gpu in every if gpu.uuid == row.gpu_uuid), None)
        return found or mig_device(re.sub("^GPU-", "MIG-", row.gpu_uuid))
    number, visible = int(row.device.partition(":")[2] or 0), visible_gpus()
    return visible[number] if number < len(visible) else None
