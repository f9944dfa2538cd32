"""Starting one function in several processes of this machine, without torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    _prctl_pr_set_pdeathsig,
    start_processes,
)

from modules.config import TrainingError
from modules.distributed.process_group import STORE_OF_LAUNCHER, cleanup_distributed, join_group, resolve_backend
from modules.machine import find_free_port, hostname
from modules.run.explanations import SECONDARY_KINDS, explain_exception
from modules.run.group_place import Place

GRACE_S = 8.0
ECHO_WAITS_S = 2.0

P = ParamSpec("P")


def launch_distributed(
    train_fn: Callable[Concatenate[int, int, P], None],
    world_size: int,
    backend: str = "nccl",
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Run `train_fn(rank, world_size, *args, **kwargs)` in `world_size` processes that already form a process group.

    `train_fn` must be importable (defined at the top of a module). Returns when all have ended; where one fails, the
    others are ended within seconds and TrainingError names the rank and carries its traceback.
    """
    port = find_free_port(12355)
    spawn(_in_group, world_size, port, (train_fn, world_size, resolve_backend(backend)[0], args, kwargs))


def spawn(function: Callable[..., None], world_size: int, port: int, arguments: tuple[object, ...]) -> None:
    """Start `function(place, *arguments)` once per rank with torch.multiprocessing and wait for all.

    Raises TrainingError for the first rank that failed, after the others have ended or were killed.
    """
    # A store in this process outlives every rank: one that is killed or stopped does not take it along.
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=sys.platform != "win32")
    context = start_processes(
        _at_place,
        args=(world_size, port, function, arguments),
        nprocs=world_size,
        join=False,
        start_method="spawn",
    )
    assert context is not None
    try:
        # the grace lets the others notice the loss, write it down and leave by themselves
        while not context.join(grace_period=GRACE_S):
            time.sleep(0.1)
    except ProcessExitedException as error:
        # as torchrun prints it, so that the supervisor reads both launchers alike
        now = time.strftime("%Y-%m-%d_%H:%M:%S")
        print(
            f"Root Cause (first observed failure):\n  time      : {now}\n  host      : {hostname()}\n"
            f"  rank      : {error.error_index} (local_rank: {error.error_index})\n"
            f"  exitcode  : {error.exit_code} (pid: {error.error_pid})",
            file=sys.stderr,
            flush=True,
        )
        raise TrainingError(f"rank {error.error_index} ended with exit code {error.exit_code}.") from error
    except ProcessRaisedException as error:
        raise TrainingError(f"rank {error.error_index} failed: {error.msg}") from error
    finally:
        del store


def _at_place(
    rank: int, world_size: int, port: int, function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    place = Place(rank, rank, world_size, "127.0.0.1", port)
    # torch has the system send SIGINT when the parent dies, which would pass for somebody's wish to stop
    _prctl_pr_set_pdeathsig(signal.SIGKILL)
    os.environ.update(place.environment())
    os.environ[STORE_OF_LAUNCHER] = str(port)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    function(place, *arguments)


def _in_group(
    place: Place,
    train_fn: Callable[..., None],
    world_size: int,
    backend: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    join_group(place, backend, timeout_s=300)
    try:
        train_fn(place.rank, world_size, *args, **kwargs)
    except Exception as error:
        if explain_exception(error, training=True).kind in SECONDARY_KINDS:
            time.sleep(ECHO_WAITS_S)  # the rank that caused it is to end first, because the first is told
        raise
    finally:
        cleanup_distributed()
