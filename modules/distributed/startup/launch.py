"""Start a function in several processes of this machine, without torchrun."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from modules.config import TrainingError
from modules.distributed.process_group import cleanup_distributed, join_group, resolve_backend
from modules.distributed.startup.loopback import host_store
from modules.distributed.startup.store import LAUNCHER_STORE_VARIABLE
from modules.machine import find_free_port, hostname
from modules.run.folder.error_help import explain_exception
from modules.run.folder.error_rules import SECONDARY_KINDS
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.rank_env import RankEnv, use_own_slice
from modules.run.launch.store_secret import new_secret, store_secret
from modules.torch_compat import set_parent_death_signal

GRACE_S = 8.0
SECONDARY_FAILURE_DELAY_S = 2.0

P = ParamSpec("P")


class RankExited(TrainingError):
    """A rank's process ended by itself with an exit code other than 0, or was killed (a negative code)."""

    rank, rank_exit_code, pid = -1, 0, 0

    @classmethod
    def of_process(cls, rank: int, exit_code: int, pid: int) -> RankExited:
        """The error about one process."""
        error = cls(f"rank {rank} ended with exit code {exit_code}.")
        error.rank, error.rank_exit_code, error.pid = rank, exit_code, pid
        return error

    def in_torchrun_format(self) -> str:
        """For a supervisor, which reads how the ranks ended from the output of either launcher."""
        now = time.strftime("%Y-%m-%d_%H:%M:%S")
        return (
            f"Root Cause (first observed failure):\n  time      : {now}\n  host      : {hostname()}\n"
            f"  rank      : {self.rank} (local_rank: {self.rank})\n"
            f"  exitcode  : {self.rank_exit_code} (pid: {self.pid})"
        )


def launch_distributed(
    train_fn: Callable[Concatenate[int, int, P], None],
    world_size: int,
    backend: str = "nccl",
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Run `train_fn(rank, world_size, *args, **kwargs)` in `world_size` processes that form a process group.

    `train_fn` must be importable (defined at the top level of a module). Returns when all have exited. If one fails,
    the others are terminated within seconds and TrainingError names the rank and carries its traceback.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; it must be 1 or more processes")
    port = find_free_port(12355)
    spawn(_in_group, world_size, port, (train_fn, resolve_backend(backend)[0], args, kwargs))


def spawn(
    function: Callable[..., None],
    world_size: int,
    port: int,
    arguments: tuple[object, ...],
    *,
    start_method: str = "spawn",
) -> None:
    """Start `function(rank_env, *arguments)` once per rank with torch.multiprocessing and wait for all of them.

    `start_method` is "spawn" or "forkserver", whose server can import beforehand what each rank needs.

    Raises TrainingError for the first rank that failed, RankExited if not by an exception, after the others have
    exited or were killed.
    """
    # Hosted by this process, the store outlives every rank, even one that is killed or stopped.
    store = host_store("127.0.0.1", port)
    args = world_size, port, store_secret() or new_secret(), function, arguments
    context = start_processes(_run_rank, args, nprocs=world_size, join=False, start_method=start_method)
    assert context is not None
    try:
        # the grace period lets the others notice the loss, record it and exit by themselves
        while not context.join(grace_period=GRACE_S):
            time.sleep(0.1)
    except ProcessExitedException as error:
        raise RankExited.of_process(error.error_index, int(error.exit_code or 0), error.error_pid) from error
    except ProcessRaisedException as error:
        raise TrainingError(f"rank {error.error_index} failed: {error.msg}") from error
    finally:
        for process in context.processes:
            process.kill()  # those that are left after a second Ctrl-C
        del store


def _run_rank(
    rank: int, world_size: int, port: int, secret: str, function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    gc.freeze()  # what was imported stays
    gc.enable()
    rank_env = RankEnv(rank, rank, world_size, "127.0.0.1", port)
    if sys.platform == "linux":
        # torch makes the kernel send SIGINT when the parent dies, which would look like a stop request
        set_parent_death_signal(signal.SIGKILL)
    os.environ.update(rank_env.environment())
    use_own_slice(os.environ, rank_env)
    os.environ[LAUNCHER_STORE_VARIABLE] = str(port)
    os.environ[STORE_SECRET] = secret
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    function(rank_env, *arguments)


def _in_group(
    rank_env: RankEnv, train_fn: Callable[..., None], backend: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    join_group(rank_env, backend, timeout_s=300)
    try:
        train_fn(rank_env.rank, rank_env.world_size, *args, **kwargs)
    except Exception as error:
        if explain_exception(error, training=True).kind in SECONDARY_KINDS:
            time.sleep(SECONDARY_FAILURE_DELAY_S)  # let the culprit exit first: only the first is reported
        raise
    finally:
        cleanup_distributed()
