"""How everything above this package meets the other ranks: one protocol, the same for one process and for many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from modules.config import TrainConfig
from modules.distributed.async_all_reduce import AsyncAllReduce
from modules.distributed.file_transfer import broadcast_folder
from modules.distributed.health.device_readings import Readings
from modules.distributed.health.diagnosis import WaitRow
from modules.distributed.health.watchdog import Watchdog
from modules.distributed.process_group import Group, connect, leaving_group, meet, resolve_backend
from modules.distributed.run_store import RunStore
from modules.distributed.shared_folders import SharedFolderGroups, find_shared_folder_groups
from modules.distributed.startup.cluster_info import ClusterInfo, gather_cluster_info, local_cluster_info
from modules.distributed.startup.member import ranks_by_machine
from modules.distributed.store_barrier import StoreBarrier, do_nothing
from modules.run import Failure, RunFolder
from modules.run.launch.rank_env import RankEnv


class RankGroup(Protocol):
    """The ranks of a run as one of them sees them. All methods but the attributes are called by every rank.

    Work of unequal length (caching, sampling, saving) is waited for through the store, never in a collective, so it
    may take hours; a rank that has died is noticed within seconds.
    """

    rank: int
    world_size: int
    machines: int  # that the ranks are on
    backend: str  # "nccl", "gloo", or "none" for a single process
    device: torch.device
    cluster_info: ClusterInfo
    readings: Readings
    on_wait: Callable[[], None]  # called several times a second while this rank waits for others; may raise

    def gather(self, name: str, text: str) -> list[str]:
        """Every rank's text, by rank."""

    def gather_bytes(self, name: str, data: bytes) -> list[bytes]:
        """Every rank's data, by rank, on rank 0; elsewhere an empty list."""

    def all_reduce(self, value: float) -> float:
        """The sum of the ranks' values; blocks."""

    def sync_metrics(self, values: Mapping[str, float]) -> dict[str, float]:
        """Start summing `values` over the ranks; returns the sums of the previous call (zeros at first)."""

    def run_on_rank0(self, name: str, work: Callable[[], None]) -> None:
        """Rank 0 runs `work` while the others wait."""

    def run_on_all(self, name: str, work: Callable[[], None]) -> None:
        """Every rank runs `work`, then waits for the others."""

    def shared_folder_groups(self, name: str, folder: Path) -> SharedFolderGroups:
        """Which ranks see the same `folder`, which the setting `name` names."""

    def broadcast_folder(
        self, source: Path | None, target: Path | None, sender: int, name: str, names: Collection[str]
    ) -> None:
        """Copy the files called `names` in `source` of rank `sender` to `target` of every rank that gives one.

        Raises OSError if a file cannot be read, or not be written here; the other ranks still get theirs.
        """

    def cancel(self, reason: str) -> bool:
        """Make every rank leave at the current wait; False if all have passed it or another rank came first."""

    def cancel_reason(self) -> str:
        """Why a rank cancelled the current wait; empty if none did."""


class SingleProcess:
    """The group of a process that trains alone: there are no other ranks to wait for."""

    rank = 0
    world_size = 1
    machines = 1
    backend = "none"
    readings: Readings
    on_wait: Callable[[], None]

    def __init__(self, metric_names: Sequence[str]) -> None:
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.cluster_info = local_cluster_info(self.device)
        self._metrics = dict.fromkeys(metric_names, 0.0)

    def gather(self, name: str, text: str) -> list[str]:
        return [text]

    def gather_bytes(self, name: str, data: bytes) -> list[bytes]:
        return [data]

    def all_reduce(self, value: float) -> float:
        return value

    def sync_metrics(self, values: Mapping[str, float]) -> dict[str, float]:
        previous, self._metrics = self._metrics, {name: values.get(name, 0.0) for name in self._metrics}
        return previous

    def run_on_rank0(self, name: str, work: Callable[[], None]) -> None:
        work()

    def run_on_all(self, name: str, work: Callable[[], None]) -> None:
        work()

    def shared_folder_groups(self, name: str, folder: Path) -> SharedFolderGroups:
        return SharedFolderGroups(0, ((0,),))

    def broadcast_folder(
        self, source: Path | None, target: Path | None, sender: int, name: str, names: Collection[str]
    ) -> None:
        """There are no other ranks to send to."""

    def cancel(self, reason: str) -> bool:
        return True

    def cancel_reason(self) -> str:
        return ""


class DistributedRanks(StoreBarrier):
    """One rank of a torch process group; small messages go over its CPU group, long waits through the store."""

    cluster_info: ClusterInfo
    readings: Readings

    def __init__(self, group: Group, watchdog: Watchdog, metric_names: Sequence[str]) -> None:
        super().__init__(group.store, group.rank, group.world_size, watchdog)
        self.process_group = group
        self.machines = len(ranks_by_machine(group.members))
        self.backend, self.device = group.backend, group.device
        self._metrics = AsyncAllReduce(metric_names, group.control)

    def gather_bytes(self, name: str, data: bytes) -> list[bytes]:
        """One gather, padded to the longest."""
        lengths = [int(length) for length in self.gather(name, str(len(data)))]
        sent = torch.frombuffer(bytearray(data.ljust(max(1, *lengths), b"\0")), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in lengths] if self.rank == 0 else None
        dist.gather(sent, received, dst=0, group=self.process_group.control)
        return [tensor.numpy().tobytes()[:n] for tensor, n in zip(received or [], lengths, strict=False)]

    def all_reduce(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.process_group.control)
        return tensor.item()

    def sync_metrics(self, values: Mapping[str, float]) -> dict[str, float]:
        return self._metrics.sync(values)

    def shared_folder_groups(self, name: str, folder: Path) -> SharedFolderGroups:
        return find_shared_folder_groups(name, folder, self.rank, self.gather)

    def broadcast_folder(
        self, source: Path | None, target: Path | None, sender: int, name: str, names: Collection[str]
    ) -> None:
        control = self.process_group.control
        broadcast_folder(source, target, sender, names, key=name, store=self._store, group=control)


@contextmanager
def single_process(metric_names: Sequence[str]) -> Iterator[SingleProcess]:
    """The group of a process that trains alone, with its device being monitored."""
    ranks = SingleProcess(metric_names)
    try:
        with closing(Readings(ranks.cluster_info, 0)) as ranks.readings:
            yield ranks
    finally:
        ranks.on_wait = do_nothing  # a bound method of the trainer: as a cycle it would keep the model's memory


@contextmanager
def distributed_ranks(
    rank_env: RankEnv,
    store: RunStore,
    config: TrainConfig,
    metric_names: Sequence[str],
    folder: RunFolder,
    *,
    expected: tuple[type[BaseException], ...],
    on_note: Callable[[str], None],
    on_waiting: Callable[[list[WaitRow]], None] | None,
    on_force_exit: Callable[[Failure], None] | None,
) -> Iterator[DistributedRanks]:
    """Join the process group for the duration of the block, watched over; it is left in every case.

    Exceptions of the kinds `expected` end the block on all ranks alike and are no failures. `on_note` gets lines for
    the terminal, `on_waiting` who waits for whom, `on_force_exit` why this process is ended by force.
    Raises ConfigError if the ranks' code or settings differ, GroupError if the group does not form.
    """
    backend, _ = resolve_backend(config.distributed_backend)
    meeting = meet(rank_env, config.startup_timeout_s, store)
    with (
        leaving_group(expected),
        Watchdog(
            meeting, folder, expected=expected, on_waiting=on_waiting, on_long_wait=on_note, on_force_exit=on_force_exit
        ) as watchdog,
    ):
        group = connect(meeting, backend, config.startup_timeout_s)
        ranks = DistributedRanks(group, watchdog, metric_names)
        try:
            ranks.cluster_info = gather_cluster_info(group, config, ranks.gather)
            with closing(Readings(ranks.cluster_info, ranks.rank, group.store)) as ranks.readings:
                yield ranks
            ranks._metrics.wait()
            dist.barrier(group=group.control)  # rank 0 may host the store: no rank leaves before all are done with it
        except expected:
            dist.barrier(group=group.control)
            raise
        finally:
            # on_wait is a bound method of the trainer: as a cycle it would keep gloo's connections open
            ranks.on_wait = do_nothing
