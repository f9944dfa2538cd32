"""What real processes do that sign in: one comes late, two of four come, and all come again to the same store."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from modules.config import ConfigError, TrainConfig
from modules.distributed import (
    Group,
    GroupError,
    Place,
    Roster,
    device_readings,
    readings,
    roster_lines,
    sign_in,
    take_roster,
)
from modules.distributed.process_group import cleanup_distributed, join_group, open_store


def signing_in(place: Place, ports: list[int], folder: Path) -> None:
    """Everything that two processes find out, into FOLDER/rank-N.json."""
    sign_in.TELL_AFTER_S = 0.5
    os.environ.update({"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    late, half, kept = ports
    facts = {**_one_is_late(place, late), "half": _half_of_four(place, half), "again": _twice(place, kept)}
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    (folder / f"rank-{place.rank}.json").write_text(json.dumps(facts))


def _one_is_late(place: Place, port: int) -> dict[str, object]:
    time.sleep(2.0 * place.rank)
    said: list[str] = []
    group = join_group(Place(place.rank, place.rank, 2, "127.0.0.1", port), "gloo", 60, say=said.append)
    roster = _roster(group)
    dist.barrier(group=group.control)
    cleanup_distributed()
    members = [[each.rank, each.host, each.process_id] for each in group.members]
    return {"said": said, "members": members, **roster}


def _roster(group: Group) -> dict[str, object]:
    """The start-up report, one that is refused, and the readings of two hosts."""
    rank = group.place.rank
    gathered = iter(range(100))

    def gather(name: str, text: str) -> list[str]:
        key = f"{next(gathered)}/{name}"
        group.store.set(f"{key}/{rank}", text)
        return [group.store.get(f"{key}/{other}").decode() for other in range(2)]

    roster = take_roster(group, TrainConfig(), gather)
    refused = ""
    try:
        take_roster(group, TrainConfig(epochs=7 + rank, cache_dir=f"cache-{rank}"), gather)
    except ConfigError as error:
        refused = str(error)
    rows = tuple(replace(row, host=("alpha", "beta")[row.rank]) for row in roster.rows)
    device_readings.READ_EVERY_S = 0.1
    with readings(Roster(rows), rank, group.store) as reading:
        deadline = time.monotonic() + 60
        while rank == 0 and len(reading.latest()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        seen = {str(each): dict(figures) for each, figures in reading.latest().items()}
        gather("seen", "")
    return {"lines": roster_lines(roster), "refused": refused, "readings": seen}


def _half_of_four(place: Place, port: int) -> list[str]:
    try:
        open_store(Place(place.rank, place.rank, 4, "127.0.0.1", port), 3 + place.rank, lambda text: None)
    except GroupError as error:
        return [error.message, error.advice]
    return ["formed"]


def _twice(place: Place, port: int) -> list[bool]:
    """As after a restart by torchrun, whose store lives on with all keys."""
    agents = TCPStore("127.0.0.1", port, is_master=place.rank == 0, wait_for_workers=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    seen = []
    for attempt in range(2):
        store = open_store(Place(place.rank, place.rank, 2, "127.0.0.1", port), 60, lambda text: None)
        seen.append(store.check(["left behind"]))
        store.set(f"done/{place.rank}", "")
        store.wait(["done/0", "done/1"], timedelta(seconds=60))
        store.set("left behind", str(attempt))
    agents.set(f"end/{place.rank}", "")
    agents.wait(["end/0", "end/1"], timedelta(seconds=60))
    time.sleep(0.5 if place.rank == 0 else 0)  # rank 0 holds the store
    return seen
