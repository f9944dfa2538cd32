"""What other ranks put into the store, as the readers of each value get it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
from torch._C._distributed_c10d import HashStore

from modules.checkpoint import file_names
from modules.distributed.file_transfer import _listed
from modules.distributed.health.diagnosis import (
    RankSnapshot,
    find_mismatch,
    find_straggler,
    format_stacks,
    is_any_overdue,
    wait_rows,
)
from modules.distributed.health.exchange import Exchange
from modules.distributed.health.flight_recorder import Collective
from modules.distributed.health.heartbeat import Heartbeat
from modules.distributed.health.timed_store import TimedStore
from modules.distributed.run_store import RunStore
from modules.distributed.shared_folders import SharedFolderGroups, find_shared_folder_groups
from modules.distributed.startup.cluster_info import ClusterInfo
from modules.distributed.startup.cluster_report import cluster_lines, cluster_warnings
from modules.distributed.startup.member import Member, find_missing_ranks
from modules.distributed.startup.rank_info import RankInfo
from modules.distributed.startup.rendezvous import members
from modules.run.folder.failures import Failure
from modules.training.backup.checkpoint_sync import _offer
from modules.training.data.consistency import check_same_images, check_same_index_file
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, json_changed

_MEMBER = Member(1, 1, "beta", 4321, 0, 2, "m1", "10.0.0.2")
_INFO = RankInfo(1, "beta", 4321, "cuda:1", "H100", 80_000, 70_000, "nccl", 8, {"torch": "2.13.0"}, time.time())
_CALL = Collective("0", 7, "all_reduce", "[[3]] Float", True, 1e9, 600.0)
_SNAPSHOT = RankSnapshot(1, "beta", 5, "x.py:3 (f)", "the loader", 9.0, "saving", (0,), (_CALL,), "  File x\n")


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        failure = asdict(Failure(1, "beta", "error", "It failed.", "Try again.", "Traceback"))
        digest = "ab" * 32
        self._seeds: Mapping[str, tuple[object, Callable[[bytes], object]]] = {
            "member": (asdict(_MEMBER), _read_members),
            "rank info": (asdict(_INFO), _read_info),
            "heartbeat": (asdict(Heartbeat(3, 1.5)), _read_heartbeat),
            "snapshot": (asdict(_SNAPSHOT), _read_snapshot),
            "failure": (failure, _read_failure),
            "offer": ({"number": 3, "sha256": digest}, lambda value: _offer(1, value.decode("utf-8", "replace"))),
            "files": (dict.fromkeys(sorted(file_names(2)), 10), lambda value: _listed(value, file_names(2), 1)),
            "nonce": ("0" * 32, lambda value: self._shared_folders([value, b"", b"[0, 1]"])),
            "seen": ([0, 1], lambda value: self._shared_folders([b"0" * 32, b"", value])),
            "index file": (["index-1", "beta", ["/images"]], _read_index_file),
            "pictures": ([digest, "x"], _read_images),
        }

    def make(self, draw: Random) -> None:
        name = draw.choice(list(self._seeds))
        data = json.dumps(self._seeds[name][0]).encode()
        changed = json_changed(data, draw) if draw.random() < 0.85 else bytes_changed(data, draw)
        (self._places.case / "value").write_bytes(changed)
        (self._places.case / "of").write_text(name)

    def read(self) -> str:
        name = (self._places.case / "of").read_text()
        found = self._seeds[name][1]((self._places.case / "value").read_bytes())
        return "" if found else "it is ignored"

    def _shared_folders(self, values: list[bytes]) -> object:
        groups = find_shared_folder_groups("cache_dir", self._places.case / "cache", 0, _gather(values))
        assert sorted(rank for group in groups.groups for rank in group) == [0, 1]
        return groups


def _gather(values: list[bytes]) -> Callable[[str, str], list[str]]:
    """A gather of two ranks; `values` are those of rank 1, one for each call."""
    left = list(values)
    return lambda name, text: [text, left.pop(0).decode(errors="replace") if left else ""]  # as StoreBarrier.gather


class _Ranks:
    """What of a RankGroup reads the others' texts."""

    rank = 0

    def __init__(self, *values: bytes) -> None:
        self.gather = _gather(list(values))


def _store(key: str, value: bytes) -> RunStore:
    store = RunStore(HashStore(), None)
    store._store.set(store._prefix + key, value)  # type: ignore[arg-type]
    return store


@contextmanager
def _exchange(key: str, value: bytes) -> Iterator[Exchange]:
    store = TimedStore(_store(key, value), 5.0)
    try:
        yield Exchange(store, 0, 2)
    finally:
        store.close()


def _read_members(value: bytes) -> object:
    store = _store("member/1", value)
    store.set("member/0", json.dumps(asdict(_MEMBER) | {"rank": 0, "local_rank": 0}))
    found = members(store, 2)
    str(find_missing_ranks(found, 3))
    return found


def _read_info(value: bytes) -> object:
    own = RankInfo.parse(json.dumps(asdict(_INFO) | {"rank": 0}), 0)
    info = ClusterInfo((own, RankInfo.parse(value.decode(errors="replace"), 1)))
    cluster_lines(info)
    cluster_warnings(info, 8)
    return info


def _read_heartbeat(value: bytes) -> object:
    with _exchange("heartbeat/1", value) as exchange:
        return exchange.heartbeats([1])


def _read_failure(value: bytes) -> object:
    with _exchange("failure", value) as exchange:
        return exchange.failure()


def _read_snapshot(value: bytes) -> object:
    with _exchange("snapshot/1", value) as exchange:
        found = exchange.snapshots([1])
    snapshots = {0: RankSnapshot(0, "alpha", 5, "", "", 9.0, "", (1,), (_CALL,), ""), **found}
    for diagnose in (find_mismatch, find_straggler, format_stacks, wait_rows):
        cast(Any, diagnose)(snapshots)
    is_any_overdue(snapshots, {0: 9.0, 1: 9.0}, "alpha")
    return found


def _read_index_file(value: bytes) -> object:
    groups = SharedFolderGroups(0, ((0, 1),))
    check_same_index_file(Path("index-1"), ["/images"], groups, cast(Any, _Ranks(value)))
    return groups


def _read_images(value: bytes) -> object:
    hashes = np.arange(1, 5, dtype=np.uint64)
    index = type("Index", (), {"concept": [0] * 4, "relative_path": lambda self, row: f"{row}.png"})()
    index.header = type("Header", (), {"roots": ["/images"]})()
    check_same_images(index, hashes, cast(Any, _Ranks(value, value, value)))
    return hashes
