"""What the store of a large group takes of a core: `python benchmarks/many_ranks.py --ranks 512`.

The ranks are threads in a few processes, with connections, watchdogs and barriers of their own; they train nothing. CPU
seconds are those of the process that hosts the store, so other load changes little: with heartbeats alone; with all but
one waiting at a barrier, as during a backup; at barriers that all reach together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from modules.distributed.health.watchdog import Watchdog
from modules.distributed.process_group import Meeting
from modules.distributed.run_store import RunStore
from modules.distributed.startup.loopback import HAS_LIBUV, host_store
from modules.distributed.startup.member import Member
from modules.distributed.store_barrier import StoreBarrier
from modules.run.launch.rank_env import RankEnv
from modules.torch_compat import TCPStore

SECRET = "s" * 32
PER_MACHINE = 8
BARRIERS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--processes", type=int, default=8, help="that hold the ranks")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row")
    given = parser.parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # it warns of each connection that has no host name
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    host = context.Process(target=_host, args=(theirs,), daemon=True)
    host.start()
    port: int = ours.recv()
    phase = context.Barrier(given.processes + 1)
    shares = [range(given.ranks)[number :: given.processes] for number in range(given.processes)]
    processes = [
        context.Process(target=_ranks, args=(share, given.ranks, port, phase, given.seconds), daemon=True)
        for share in shares
    ]
    for process in processes:
        process.start()

    def measured(name: str) -> float:
        phase.wait()
        before = _cpu_s(ours), time.monotonic()
        phase.wait()
        cpu_s, wall_s = _cpu_s(ours) - before[0], time.monotonic() - before[1]
        print(
            f"{given.ranks} ranks, {name:<28} {cpu_s:7.2f} s CPU in {wall_s:5.1f} s: {cpu_s / wall_s:5.0%} of a core",
            flush=True,
        )
        return cpu_s

    measured("heartbeats")
    measured("waiting for the last")
    cpu_s = measured(f"{BARRIERS} barriers, {BARRIERS} gathers")
    print(f"{cpu_s / (2 * BARRIERS):.3f} s CPU for each of them")
    for process in processes:
        process.join()
    host.kill()


def _host(pipe: Connection) -> None:
    store = host_store("127.0.0.1", 0)
    pipe.send(store.port)
    while True:
        pipe.recv()
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(used.ru_utime + used.ru_stime)


def _cpu_s(host: Connection) -> float:
    host.send(None)
    used: float = host.recv()
    return used


def _ranks(share: range, world_size: int, port: int, phase: Barrier, seconds: float) -> None:
    inside = threading.Barrier(len(share) + 1)
    threads = [threading.Thread(target=_rank, args=(rank, world_size, port, inside, seconds)) for rank in share]
    for thread in threads:
        thread.start()
    for _ in range(6):
        inside.wait()
        phase.wait()
    inside.wait()
    for thread in threads:
        thread.join()


def _rank(rank: int, world_size: int, port: int, inside: threading.Barrier, seconds: float) -> None:
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, use_libuv=HAS_LIBUV)
    members = tuple(
        Member(each, each % PER_MACHINE, f"m{each // PER_MACHINE}", 1, None, None, machine_id=f"m{each // PER_MACHINE}")
        for each in range(world_size)
    )
    meeting = Meeting(
        RankEnv(rank, rank % PER_MACHINE, world_size, "127.0.0.1", port), RunStore(store, SECRET), members
    )
    with Watchdog(meeting) as dog:
        barrier = StoreBarrier(meeting.store, rank, world_size, dog)
        barrier.run_on_all("start", lambda: None)
        inside.wait()
        time.sleep(seconds)
        inside.wait()
        inside.wait()
        barrier.run_on_all("backup", lambda: time.sleep(seconds if rank == world_size - 1 else 0.0))
        inside.wait()
        inside.wait()
        for number in range(BARRIERS):
            barrier.run_on_all(f"all {number}", lambda: None)
            barrier.gather(f"texts {number}", "x" * 200)
        inside.wait()
        inside.wait()


if __name__ == "__main__":
    main()
