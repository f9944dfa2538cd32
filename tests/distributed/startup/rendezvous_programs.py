"""Programs for the processes of test_rendezvous: one is late, two of four join, and all rejoin the same store."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from modules.config import ConfigError, TrainConfig
from modules.distributed import ClusterInfo, Group, GroupError, RankEnv, cluster_lines
from modules.distributed.health import device_readings
from modules.distributed.health.device_readings import Readings
from modules.distributed.process_group import cleanup_distributed, join_group
from modules.distributed.startup import cluster_info as cluster_info_module
from modules.distributed.startup import rendezvous
from modules.distributed.startup.cluster_info import gather_cluster_info
from modules.distributed.startup.store import open_store


def run_all(rank_env: RankEnv, ports: list[int], folder: Path) -> None:
    """All of it in two processes; the results go to FOLDER/rank-N.json."""
    rendezvous.REPORT_AFTER_S = 0.5
    os.environ.update({"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    late, half, kept = ports
    facts = {**_one_is_late(rank_env, late), "half": _half_of_four(rank_env, half), "again": _twice(rank_env, kept)}
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    (folder / f"rank-{rank_env.rank}.json").write_text(json.dumps(facts))


def _one_is_late(rank_env: RankEnv, port: int) -> dict[str, object]:
    time.sleep(2.0 * rank_env.rank)
    said: list[str] = []
    here = RankEnv(rank_env.rank, rank_env.rank, 2, "127.0.0.1", port)
    group = join_group(here, "gloo", 60, open_store(here, 60, said.append))
    cluster_info = _roster(group)
    dist.barrier(group=group.control)
    cleanup_distributed()
    members = [[each.rank, each.host, each.process_id] for each in group.members]
    return {"said": said, "members": members, **cluster_info}


def _roster(group: Group) -> dict[str, object]:
    """The start-up report, one that is refused, and the readings of two hosts."""
    rank = group.rank
    gathered = iter(range(100))

    def gather(name: str, text: str) -> list[str]:
        key = f"{next(gathered)}/{name}"
        group.store.set(f"{key}/{rank}", text)
        return [group.store.get(f"{key}/{other}").decode() for other in range(2)]

    cluster_info = gather_cluster_info(group, TrainConfig(), gather)
    refused = ""
    try:
        gather_cluster_info(group, TrainConfig(epochs=7 + rank, cache_dir=f"cache-{rank}"), gather)
    except ConfigError as error:
        refused = str(error)
    link_mb_s = _with_a_late_rank(group)
    rows = tuple(replace(row, host=("alpha", "beta")[row.rank]) for row in cluster_info.rows)
    device_readings.READ_EVERY_S = 0.1
    with closing(Readings(ClusterInfo(rows), rank, group.store)) as reading:
        deadline = time.monotonic() + 60
        while rank == 0 and len(reading.latest()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        seen = {str(each): dict(figures) for each, figures in reading.latest().items()}
        gather("seen", "")
    return {"lines": cluster_lines(cluster_info), "refused": refused, "readings": seen, "link": link_mb_s}


def _with_a_late_rank(group: Group) -> float:
    """What the link measures if one rank comes half a second late to the first exchange after the connection."""
    real, calls = dist.all_reduce, []

    def late(tensor: torch.Tensor) -> None:
        calls.append(1)
        time.sleep(0.5 if len(calls) == 2 and group.rank == 1 else 0)
        real(tensor)

    with mock.patch.object(dist, "all_reduce", late):
        return cluster_info_module.measure_link_mb_s(group)


def _half_of_four(rank_env: RankEnv, port: int) -> list[str]:
    try:
        open_store(RankEnv(rank_env.rank, rank_env.rank, 4, "127.0.0.1", port), 3 + rank_env.rank, lambda text: None)
    except GroupError as error:
        return [error.message, error.advice]
    return ["formed"]


def _twice(rank_env: RankEnv, port: int) -> list[bool]:
    """As after a restart by torchrun, whose store keeps all keys."""
    agents = TCPStore("127.0.0.1", port, is_master=rank_env.rank == 0, wait_for_workers=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    seen = []
    for attempt in range(2):
        store = open_store(RankEnv(rank_env.rank, rank_env.rank, 2, "127.0.0.1", port), 60, lambda text: None)
        seen.append(store.check(["left behind"]))
        store.set(f"done/{rank_env.rank}", "")
        store.wait(["done/0", "done/1"], timedelta(seconds=60))
        store.set("left behind", str(attempt))
    agents.set(f"end/{rank_env.rank}", "")
    agents.wait(["end/0", "end/1"], timedelta(seconds=60))
    time.sleep(0.5 if rank_env.rank == 0 else 0)  # rank 0 hosts the store
    return seen
