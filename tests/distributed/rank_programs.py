"""What real processes of the tests do; each rank writes what it found to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import os
import signal
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
    cleanup_distributed,
    meeting,
    setup_distributed,
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

    met = Meeting(group.store, place.rank, place.world_size)
    looks = 0

    def count() -> None:
        nonlocal looks
        looks += 1

    done = folder / "leader was here"

    def work_slowly() -> None:
        time.sleep(4)
        done.touch()

    meeting.DEAD_AFTER_S = 2.5  # the leader works for longer than that, but its heart beats
    met.lead("slow", work_slowly, count)
    leader_first = done.exists()
    met.all("apart", lambda: time.sleep(0.3 * place.rank), count)
    met.call_off("stopped") if place.rank == 1 else None
    dist.barrier(group=group.control)
    called_off = met.called_off()
    dist.barrier(group=group.control)
    met.close()
    backend, device = group.backend, str(group.device)
    cleanup_distributed()
    cleanup_distributed()
    tell(
        folder,
        place.rank,
        {
            "agreed": [first, second, last, nothing],
            "looks": looks,
            "leader_first": leader_first,
            "called_off": called_off,
            "left": not dist.is_initialized(),
            "backend": backend,
            "device": device,
            "alone": _never_formed(place),
        },
    )


def _never_formed(place: Place) -> str:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    try:
        setup_distributed(1, 2, "gloo", master_port=place.master_port + 1 + place.rank, timeout_s=1)
    except GroupError as error:
        return str(error)
    return "formed"


def left_alone(place: Place, folder: Path) -> None:
    """Rank 1 is killed while rank 0 waits for its part."""
    group = setup_distributed(timeout_s=60)
    meeting.DEAD_AFTER_S = 3.0
    met = Meeting(group.store, place.rank, place.world_size)
    dist.barrier(group=group.control)
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        met.all("caching", lambda: None, lambda: None)
    except PeerLost as error:
        tell(folder, 0, {"said": str(error), "after_s": time.monotonic() - began})
