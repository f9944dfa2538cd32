"""What real processes of the tests do; each rank writes what it found to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from modules.distributed import (
    Agreement,
    GroupError,
    Meeting,
    PeerLost,
    Place,
    Watchdog,
    cleanup_distributed,
    loss,
    setup_distributed,
    watchdog,
)


def tell(folder: Path, rank: int, facts: dict[str, object]) -> None:
    """Leave facts for the test."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(facts))


def users_own(rank: int, world_size: int, folder: Path, factor: float) -> None:
    """A train function as a user writes it."""
    assert dist.is_initialized()
    total = torch.tensor([factor * (rank + 1)])
    dist.all_reduce(total)
    tell(folder, rank, {"world": world_size, "total": total.item(), "environment": os.environ["LOCAL_RANK"]})


def users_mistake(rank: int, world_size: int, folder: Path) -> None:
    """One rank fails, the other waits for it for ever."""
    if rank == 1:
        raise ValueError("my own mistake")
    dist.barrier()


def agreeing(place: Place, folder: Path) -> None:
    """By hand: the group, an agreement, a meeting; then the group again, and one that never forms."""
    group = setup_distributed(timeout_s=60)
    agreement = Agreement(["stop", "loss"], group.control)
    first = agreement.exchange({"stop": float(place.rank == 1), "loss": 0.25 * (place.rank + 1)})
    second = agreement.exchange({"loss": 1.0})
    last = agreement.settle()
    nothing = agreement.settle()

    watchdog.TELL_WAITING_AFTER_S = watchdog.STILL_AFTER_S = 1.0
    waited: list[watchdog.Waiting] = []
    watchdog.NOTE_WAITING_EVERY_S = 1.0
    noted: list[str] = []
    dog = Watchdog(group, tell_waiting=waited.extend, note=noted.append)
    met = Meeting(group.store, place.rank, place.world_size, dog)
    looks = 0

    def count() -> None:
        nonlocal looks
        looks += 1

    done = folder / "leader was here"

    def work_slowly() -> None:
        time.sleep(5)
        done.touch()

    loss.DEAD_AFTER_S = 4.0  # the leader works for longer than that, but its heart beats
    with dog:
        met.lead("slow", work_slowly, count)
        leader_first = done.exists()
        met.all("apart", lambda: time.sleep(0.3 * place.rank), count)
        too_late = met.call_off("stopped")
        called_off = _called_off(met, place.rank)
        dist.barrier(group=group.control)
        gathered = met.gather("names", f"rank {place.rank}", count)
        dist.barrier(group=group.control)
    backend, device = group.backend, str(group.device)
    cleanup_distributed()
    cleanup_distributed()
    tell(
        folder,
        place.rank,
        {
            "agreed": [first, second, last, nothing],
            "looks": looks,
            "waited": waited[:1],
            "noted": noted,
            "gathered": gathered,
            "leader_first": leader_first,
            "too_late": too_late,
            "called_off": called_off,
            "left": not dist.is_initialized(),
            "backend": backend,
            "device": device,
            "alone": _never_formed(place),
        },
    )


def _called_off(met: Meeting, rank: int) -> str:
    """Rank 0 leaves while it waits for rank 1, which then comes and finds all others there."""

    def leave() -> None:
        if met.call_off("stopped"):
            raise InterruptedError(met.called_off())

    def look() -> None:
        if reason := met.called_off():
            raise InterruptedError(reason)

    def come_late() -> None:
        while not met.called_off():
            time.sleep(0.01)

    try:
        met.all("late", (lambda: None) if rank == 0 else come_late, leave if rank == 0 else look)
    except InterruptedError as stop:
        return str(stop)
    return "went on"


def _never_formed(place: Place) -> str:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    try:
        setup_distributed(1, 2, "gloo", master_port=place.master_port + 1 + place.rank, timeout_s=1)
    except GroupError as error:
        return str(error)
    return "formed"


def frozen(place: Place, folder: Path) -> None:
    """Rank 0 hangs in its work, alive but doing nothing, as on a network drive that answers no more."""
    group = setup_distributed(timeout_s=60)
    watchdog.FROZEN_AFTER_S = 3.0
    try:
        with Watchdog(group) as dog:
            Meeting(group.store, place.rank, 2, dog).lead("saving", threading.Event().wait, lambda: None)
    except PeerLost as error:
        tell(folder, place.rank, {"said": str(error)})


def left_alone(place: Place, folder: Path) -> None:
    """Rank 1 is killed while rank 0 waits for its part."""
    group = setup_distributed(timeout_s=60)
    with Watchdog(group) as dog:
        met = Meeting(group.store, place.rank, place.world_size, dog)
        met.all("start", lambda: None, lambda: None)
        if place.rank == 1:
            time.sleep(2)  # until its heart was heard
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            met.all("caching", lambda: None, lambda: None)
        except PeerLost as error:
            tell(folder, 0, {"said": str(error)})
