"""What the watchdogs of a large group ask of the store, and that the loss of a rank that judges is noticed.

All ranks are in this process.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import torch
from torch._C._distributed_c10d import Store, TCPStore

from modules.distributed.health import flight_recorder, heartbeat_monitor, watchdog
from modules.distributed.health.diagnosis import RankSnapshot
from modules.distributed.health.exchange import Exchange
from modules.distributed.health.timed_store import TimedStore
from modules.distributed.health.watchdog import Watchdog, judging_ranks, watched_ranks
from modules.distributed.process_group import Group, Meeting
from modules.distributed.run_store import RunStore
from modules.distributed.startup.member import Member
from modules.distributed.startup.rendezvous import GroupError
from modules.distributed.store_barrier import StoreBarrier
from modules.run.folder.failures import Failure, read_failures, record_failure
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.rank_env import RankEnv
from tests.ports import free_port

T = TypeVar("T")

RANKS, PER_MACHINE = 256, 8
MACHINES = RANKS // PER_MACHINE
ROUNDS = 3


class CountingStore:
    """A connection to a store that counts requests and the keys they name; its clones count together."""

    def __init__(self, store: Store, counts: Counter[str]) -> None:
        self._store, self._counts = store, counts

    def clone(self) -> CountingStore:
        return CountingStore(self._store.clone(), self._counts)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        def request(keys: Any, *others: object) -> Any:
            self._counts["requests"] += 1
            for count in ("keys", name):
                self._counts[count] += len(keys) if isinstance(keys, list) else 1
            return getattr(self._store, name)(keys, *others)

        return request


class OneConnection(CountingStore):
    """For ranks that ask one after another: opening hundreds of connections takes half a minute."""

    def clone(self) -> CountingStore:
        return self


def group_of(members: list[Member], rank: int, store: object) -> Group:
    env = RankEnv(rank, members[rank].local_rank, len(members), "127.0.0.1", 1)
    shared = RunStore(cast("Store", store), None)
    return Group(env, "gloo", torch.device("cpu"), shared, cast("Any", None), tuple(members))


def member(rank: int, machine: str) -> Member:
    return Member(rank, rank % PER_MACHINE, machine, 1, None, None, machine_id=machine)


@pytest.fixture
def store() -> Iterator[TCPStore]:
    server = TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)
    yield server
    del server


def test_duties() -> None:
    members = [member(rank, f"m{rank // PER_MACHINE}") for rank in range(24)]
    assert judging_ranks(members) == (0, 8)
    assert watched_ranks(members, 0) == watched_ranks(members, 8) == tuple(range(24))
    assert watched_ranks(members, 1) == tuple(range(8))
    assert watched_ranks(members, 16) == watched_ranks(members, 17) == tuple(range(16, 24))
    assert watched_ranks(members, 2) == watched_ranks(members, 18) == ()
    assert judging_ranks(members[:8]) == (0, 7)
    assert judging_ranks(members[:1]) == (0,)


@pytest.mark.slow
def test_the_load_of_256_ranks(store: TCPStore) -> None:
    counts: Counter[str] = Counter()
    counting = OneConnection(store, counts)
    members = [member(rank, f"m{rank // PER_MACHINE}") for rank in range(RANKS)]
    dogs = [Watchdog(group_of(members, rank, counting)) for rank in range(RANKS)]
    for _ in range(2):  # in the first round, the first ranks find no heartbeats of the later ones
        for dog in dogs:
            dog._check_ranks()
    counts.clear()
    for _ in range(ROUNDS):
        for dog in dogs:
            dog._check_ranks()
    # Each rank: its heartbeat, whether the run has failed, whether a snapshot is wanted. The first two of a machine:
    # its heartbeats. Two ranks, instead of those of their machine: all heartbeats, and whether a connection broke.
    watchers = 2 * MACHINES
    assert counts["requests"] == ROUNDS * (3 * RANKS + watchers + 2)
    assert counts["keys"] == ROUNDS * (3 * RANKS + (watchers - 2) * PER_MACHINE + 2 * RANKS + 2)
    assert counts["keys"] / ROUNDS < RANKS * RANKS / 30  # every rank used to read every rank's heartbeat
    assert all(dog._failure is None for dog in dogs)
    for dog in dogs:
        dog._store.close()


def test_each_value_is_fetched_once(store: TCPStore) -> None:
    """Authentication needs the value itself, which is not to be fetched for that alone; rank 0 does it for all."""
    members = [member(rank, "m") for rank in range(3)]
    dogs = [Watchdog(group_of(members, rank, store)) for rank in range(3)]
    counts: list[Counter[str]] = [Counter() for _ in dogs]
    shared = [RunStore(cast("Store", CountingStore(store, each).clone()), "s" * 32) for each in counts]
    barriers = [StoreBarrier(shared[rank], rank, 3, dogs[rank]) for rank in range(3)]

    def fetched(act: Callable[[StoreBarrier], T]) -> tuple[int, list[T]]:
        for each in counts:
            each.clear()
        with ThreadPoolExecutor(3) as ranks:
            results = list(ranks.map(act, barriers))
        return sum(each["get"] + each["multi_get"] for each in counts), results

    assert fetched(lambda each: each.gather("names", f"é{each.rank}")) == (14, [["é0", "é1", "é2"]] * 3)
    assert fetched(lambda each: each.run_on_all("index", lambda: None))[0] == 5
    assert fetched(lambda each: each.run_on_rank0("save", lambda: None))[0] == 2
    assert fetched(lambda each: each.cancel_reason()) == (3, ["", "", ""])
    long = "é0 " * (1 << 20)  # 4 MiB: three of them are more than torch's store takes as one value
    assert fetched(lambda each: each.gather("rows", long))[1] == [[long] * 3] * 3
    counts[0].clear()
    exchange = Exchange(TimedStore(shared[0], 5.0), 0, 3)
    exchange.publish(Failure(1, "beta", "error", "m", "a", ""))
    exchange.set("snapshots")
    exchange.send_snapshot(RankSnapshot(0, "alpha", 5, "", "", 9.0, "", (), (), ""))
    assert exchange.failure() is not None
    assert exchange.has("snapshots")
    assert exchange.snapshots([0, 1]).keys() == {0}
    assert counts[0]["get"] + counts[0]["multi_get"] == 3
    for dog in dogs:
        dog._store.close()


def test_the_recorder_is_read_with_the_gpu_of_the_rank(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA does it, each thread begins with GPU 0, on which NCCL's recorder would open a context."""
    current, read_with = threading.local(), dict[str, int]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(current, "gpu", device.index))

    def recorder(**_: bool) -> str:
        read_with[threading.current_thread().name] = getattr(current, "gpu", 0)
        return "{}"

    monkeypatch.setattr(flight_recorder, "FLIGHT_RECORDERS", (recorder,))
    group = group_of([member(rank, "m") for rank in range(4)], 3, store)
    with Watchdog(Meeting(group.rank_env, group.store, group.members)):
        pass  # on leaving, its thread has sent a heartbeat
    assert read_with == {"watchdog": 3}


@pytest.mark.parametrize(("lost", "judge"), [(0, 2), (2, 0)])
def test_the_loss_of_a_judging_rank_is_noticed(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: int, judge: int
) -> None:
    """It is recorded on the other machines, too, also where its failure of an earlier start is left."""
    monkeypatch.setattr(heartbeat_monitor, "SILENT_AFTER_S", 0.05)
    monkeypatch.setattr(heartbeat_monitor, "DEAD_AFTER_S", 0.05)
    members = [member(rank, f"m{rank // 2}") for rank in range(6)]
    assert judging_ranks(members) == (0, 2)
    folder = RunFolder(tmp_path)
    record_failure(folder, Failure(lost, f"m{lost // 2}", "bug", "of an earlier start", time=1.0))
    dogs = {each.rank: Watchdog(group_of(members, each.rank, store), folder) for each in members}
    silent = {lost, lost + 1}  # its whole machine
    for dog in dogs.values():
        dog._check_ranks()
    dogs[judge]._check_ranks()
    time.sleep(0.1)  # longer than DEAD_AFTER_S
    for rank in dogs.keys() - silent:
        dogs[rank]._send_heartbeat()
    dogs[judge]._check_ranks()
    failure = dogs[judge]._failure
    assert failure is not None
    assert (failure.kind, failure.host) == ("lost", members[lost].host)
    for rank in dogs.keys() - silent:
        dogs[rank]._check_ranks()
        assert dogs[rank]._failure == failure
    assert read_failures(folder) == [failure]
    for dog in dogs.values():
        dog._store.close()


def test_a_snapshot_is_asked_for_and_no_longer(store: TCPStore) -> None:
    members = [member(rank, f"m{rank // 2}") for rank in range(6)]
    dogs = [Watchdog(group_of(members, rank, store)) for rank in range(6)]
    for _ in range(2):
        for dog in dogs:
            dog._check_ranks()
    assert not store.check(["snapshot/5"])
    with dogs[4].waiting("saving", 0):
        dogs[4]._self_monitor._wait = heartbeat_wait(dogs[4], seconds=60.0)
        for dog in (dogs[4], dogs[0], dogs[5]):
            dog._check_ranks()
        assert store.check(["snapshot/5"]), "rank 5 does not judge and does not wait"
    for dog in (dogs[4], dogs[0]):
        dog._check_ranks()
    assert store.check(["snapshots"]), "a rank that reads a key while it is removed waits for it until it is set again"
    store.delete_key("snapshot/5")
    dogs[5]._check_ranks()
    assert not store.check(["snapshot/5"])
    for dog in dogs:
        dog._store.close()


def heartbeat_wait(dog: Watchdog, seconds: float) -> Any:
    """The wait in which a rank is, as if it had begun earlier."""
    wait = dog._self_monitor._wait
    assert wait is not None
    return replace(wait, since=wait.since - seconds)


def test_ranks_that_all_form_no_group_wait_for_no_other_cause(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "FIND_CAUSE_WITHIN_S", 3600.0)
    members = [member(rank, "a") for rank in range(2)]
    dogs = [Watchdog(group_of(members, rank, store)) for rank in range(2)]
    threads = [threading.Thread(target=dog._handle_error, args=(GroupError("no group"),), daemon=True) for dog in dogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    failure = dogs[0]._exchange.failure()
    assert failure is not None
    assert failure.message == "no group"
    for dog in dogs:
        dog._store.close()
