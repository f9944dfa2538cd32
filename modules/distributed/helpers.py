"""What your own training function needs besides torch.distributed; everything works in a single process, too."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from modules.distributed.run_store import RunStore
from modules.run.launch.store_secret import store_secret
from modules.torch_compat import default_store

POLL_EVERY_S = 0.1


def is_main_process() -> bool:
    """Whether this is rank 0, the only rank that prints and saves."""
    return not dist.is_initialized() or dist.get_rank() == 0


def main_process_first(work: Callable[[], None]) -> None:
    """Rank 0 does `work` (downloading, preparing, saving) while the others wait, however long it takes.

    It is not a collective and cannot time out. All ranks must call it. If rank 0 fails, the launcher ends the others.
    """
    if not dist.is_initialized():
        work()
        return
    store = RunStore(default_store(), store_secret())
    number = store.add(f"main_process_first/calls/{dist.get_rank()}", 1)  # the n-th calls of all ranks belong together
    done = f"main_process_first/done/{number}"
    if is_main_process():
        work()
        store.set(done, "done")
    while store.find(done) is None:
        time.sleep(POLL_EVERY_S)
