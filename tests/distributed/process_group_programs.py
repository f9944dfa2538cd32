"""Programs for the processes of test_process_group; each rank writes its results to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from modules.distributed import (
    GroupError,
    RankEnv,
    cleanup_distributed,
    exit_if_group_is_left,
    setup_distributed,
)
from modules.distributed.async_all_reduce import AsyncAllReduce
from modules.distributed.health import heartbeat_monitor, watchdog
from modules.distributed.health.diagnosis import WaitRow
from modules.distributed.health.watchdog import PeerLost, Watchdog
from modules.distributed.process_group import process_group
from modules.distributed.shared_memory import fill_once_per_machine
from modules.distributed.store_barrier import StoreBarrier
from tests.ports import free_port


def write_result(folder: Path, rank: int, result: dict[str, object]) -> None:
    """Leave the result for the test."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))


def user_function(rank: int, world_size: int, folder: Path, factor: float) -> None:
    """A training function as a user writes it."""
    assert dist.is_initialized()
    total = torch.tensor([factor * (rank + 1)])
    dist.all_reduce(total)
    variables = {name: os.environ[name] for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES")}
    write_result(folder, rank, {"world": world_size, "total": total.item(), "environment": variables})


def user_error(rank: int, world_size: int, folder: Path) -> None:
    """One rank fails, the other waits for it for ever."""
    if rank == 1:
        raise ValueError("my own mistake")
    dist.barrier()


def all_primitives(rank_env: RankEnv, folder: Path) -> None:
    """The group, an asynchronous all-reduce and a store barrier; then a group that never forms."""
    group = setup_distributed(timeout_s=60)
    reduce = AsyncAllReduce(["stop", "loss"], group.control)
    first = reduce.sync({"stop": float(rank_env.rank == 1), "loss": 0.25 * (rank_env.rank + 1)})
    second = reduce.sync({"loss": 1.0})
    last = reduce.wait()
    nothing = reduce.wait()

    watchdog.REPORT_WAITING_AFTER_S = watchdog.IDLE_AFTER_S = 1.0  # type: ignore[attr-defined]
    waited: list[WaitRow] = []
    watchdog.NOTE_LONG_WAIT_EVERY_S = 1.0
    noted: list[str] = []
    dog = Watchdog(group, on_waiting=waited.extend, on_long_wait=noted.append)
    barrier = StoreBarrier(group.store, rank_env.rank, rank_env.world_size, dog)
    polls = 0

    def count() -> None:
        nonlocal polls
        polls += 1

    barrier.on_wait = count
    done = folder / "rank 0 was here"

    def work_slowly() -> None:
        time.sleep(5)
        done.touch()

    heartbeat_monitor.DEAD_AFTER_S = 4.0  # rank 0 works for longer than that, but keeps sending heartbeats
    with dog:
        barrier.run_on_rank0("slow", work_slowly)
        rank0_first = done.exists()
        barrier.run_on_all("all", lambda: time.sleep(0.3 * rank_env.rank))
        too_late = barrier.cancel("stopped")
        cancelled = _cancelled(barrier)
        dist.barrier(group=group.control)
        gathered = barrier.gather("names", f"rank {rank_env.rank}")
        memory = _share_memory(barrier)
        dist.barrier(group=group.control)
    backend, device = group.backend, str(group.device)
    cleanup_distributed()
    cleanup_distributed()
    write_result(
        folder,
        rank_env.rank,
        {
            "sums": [first, second, last, nothing],
            "polls": polls,
            "waited": waited[:1],
            "noted": noted,
            "gathered": gathered,
            "memory": memory,
            "rank0_first": rank0_first,
            "too_late": too_late,
            "cancelled": cancelled,
            "left": not dist.is_initialized(),
            "backend": backend,
            "device": device,
            "never_formed": _never_formed(rank_env),
        },
    )


def _share_memory(barrier: Any) -> dict[str, object]:
    """What both ranks see of memory that the first one fills, and of a write of the second."""
    filled: list[int] = []

    def fill(memory: Tensor) -> None:
        filled.append(barrier.rank)
        memory.copy_(torch.arange(5000) % 251)

    memory = fill_once_per_machine("bits", 5000, fill, barrier)
    address = memory.data_ptr()
    rows = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    mappings = ((row[0].split("-"), row[4:]) for row in rows)
    (mapping,) = (file for (start, end), file in mappings if int(start, 16) <= address < int(end, 16))
    is_right = bool((memory == torch.arange(5000) % 251).all())
    if barrier.rank == 1:
        memory.fill_(7)
    barrier.run_on_all("written", lambda: None)
    return {
        "filled": filled,
        "mapping": mapping,
        "right": is_right,
        "after": memory[:3].tolist(),
    }


def _cancelled(barrier: StoreBarrier) -> str:
    """Rank 0 cancels while it waits for rank 1, which then arrives last."""

    def leave() -> None:
        if barrier.cancel("stopped"):
            raise InterruptedError(barrier.cancel_reason())

    def raise_if_cancelled() -> None:
        if reason := barrier.cancel_reason():
            raise InterruptedError(reason)

    def arrive_late() -> None:
        while not barrier.cancel_reason():
            time.sleep(0.01)

    on_wait, barrier.on_wait = barrier.on_wait, leave if barrier.rank == 0 else raise_if_cancelled
    try:
        barrier.run_on_all("late", (lambda: None) if barrier.rank == 0 else arrive_late)
    except InterruptedError as stop:
        return str(stop)
    finally:
        barrier.on_wait = on_wait
    return "continued"


def _never_formed(rank_env: RankEnv) -> str:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    try:
        setup_distributed(1, 2, "gloo", master_port=rank_env.master_port + 1 + rank_env.rank, timeout_s=1)
    except GroupError as error:
        return str(error)
    return "formed"


def frozen(rank_env: RankEnv, folder: Path) -> None:
    """Rank 0 hangs in its work, alive but idle, as on a network drive that no longer answers."""
    group = setup_distributed(timeout_s=60)
    watchdog.FROZEN_AFTER_S = 3.0
    try:
        with Watchdog(group) as dog:
            StoreBarrier(group.store, rank_env.rank, 2, dog).run_on_rank0("saving", wait_for_ever)
    except PeerLost as error:
        write_result(folder, rank_env.rank, {"error": str(error)})


def peer_killed(rank_env: RankEnv, folder: Path) -> None:
    """Rank 1 is killed while rank 0 waits for it."""
    group = setup_distributed(timeout_s=60)
    with Watchdog(group) as dog:
        barrier = StoreBarrier(group.store, rank_env.rank, rank_env.world_size, dog)
        barrier.run_on_all("start", lambda: None)
        if rank_env.rank == 1:
            time.sleep(2)  # until its heartbeat has arrived
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            barrier.run_on_all("caching", lambda: None)
        except PeerLost as error:
            write_result(folder, 0, {"error": str(error)})


def wait_for_ever() -> None:
    threading.Event().wait()


def failing_rank(how: str) -> None:
    """A rank that fails while its group, like one over NCCL, cannot be destroyed: that would take for ever."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  # registers the backend "fake"

    dist.destroy_process_group = lambda group=None: time.sleep(3600)
    if how == "as a worker":
        try:
            with process_group(RankEnv(0, 0, 1, "127.0.0.1", free_port()), "fake", 60):
                raise ValueError("my own mistake")
        except ValueError as error:
            print(error)
            exit_if_group_is_left(3)
        return
    setup_distributed(0, 1, "fake", master_port=free_port())
    try:
        raise ValueError("my own mistake")
    finally:
        cleanup_distributed()
