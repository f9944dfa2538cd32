"""What your own training function needs besides torch.distributed; everything works in a single process, too."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from modules.distributed.run_store import RunStore
from modules.run.launch.store_secret import store_secret

POLL_EVERY_S = 0.1


def is_main_process() -> bool:
    """Whether this is rank 0, the only rank that prints and saves."""
    return not dist.is_initialized() or dist.get_rank() == 0


def mean_over_ranks(value: float, weight: float = 1.0) -> float:
    """The weighted mean of all ranks' values; `weight` is usually the number of samples that `value` is a mean of.

    All ranks must call it the same number of times. Raises ValueError if all weights are 0.
    """
    sums = torch.tensor([value * weight, weight], dtype=torch.float64)
    if dist.is_initialized():
        on_gpu = dist.get_backend() == "nccl"
        sums = sums.cuda() if on_gpu else sums
        dist.all_reduce(sums)
    total, weights = sums.tolist()
    if weights == 0:
        raise ValueError("mean_over_ranks: no rank gave a weight above 0")
    return float(total / weights)


def main_process_first(work: Callable[[], None]) -> None:
    """Rank 0 does `work` (downloading, preparing, saving) while the others wait, however long it takes.

    It is not a collective and cannot time out. All ranks must call it. If rank 0 fails, the launcher ends the others.
    """
    if not dist.is_initialized():
        work()
        return
    store = RunStore(dist.distributed_c10d._get_default_store(), store_secret())
    number = store.add(f"main_process_first/calls/{dist.get_rank()}", 1)  # the n-th calls of all ranks belong together
    done = f"main_process_first/done/{number}"
    if is_main_process():
        work()
        store.set(done, "done")
    while store.find(done) is None:
        time.sleep(POLL_EVERY_S)
