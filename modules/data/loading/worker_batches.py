"""Batches from the worker processes of torch's DataLoader: how they are asked for, sent, and what ends them."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from mmap import mmap
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from modules.config import TandemError, TrainingError
from modules.config.code_errors import describe_code_error
from modules.config.sections.data import DataSettings
from modules.data.batch import Batch, MicroBatch
from modules.data.loading.packed_batch import SLOT_BYTES, PackedBatch
from modules.machine import hostname

Received: TypeAlias = "Batch | PackedBatch | _WorkerError"
Loading: TypeAlias = "DataLoader[Received]"

_LEAVE_WITHIN_S: Final = 1.0
_AFTER_QUEUES: Final = -100  # multiprocessing's queues write what is left in them at -5
# Of one DataLoader of torch 2.13: its queue of results (3) and its event (5), and the queue of requests of each worker.
_SEMAPHORES: Final = 8
_SEMAPHORES_OF_A_WORKER: Final = 3
_NO_SEMAPHORE: Final = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSYS),
}


class LoaderWorkerDied(TrainingError):
    """A loader worker process ended unexpectedly."""

    kind = "loader"


class MicroBatchReader(ABC):
    """Maps a MicroBatch to its Batch, in the loader's workers."""

    @abstractmethod
    def batch(self, micro_batch: MicroBatch) -> Batch:
        """Read the samples of a micro-batch."""


@dataclass
class MicroBatchSampler(Sampler[tuple[int, MicroBatch]]):
    """The micro-batches to load, each with its slot; refilled for every epoch, because persistent workers keep their
    sampler."""

    slots: int
    pending: Iterator[MicroBatch] = field(default_factory=lambda: iter(()))

    def __iter__(self) -> Iterator[tuple[int, MicroBatch]]:
        return zip(cycle(range(self.slots)), self.pending, strict=False)


def worker_obstacle(workers: Sequence[int]) -> str:
    """Why this process cannot start so many loader workers, for training and for validation, or nothing.

    The queues between them need semaphores, which Linux keeps in /dev/shm, one page each.
    """
    context, held = torch.multiprocessing.get_context(), list[object]()
    try:
        number = sum(_SEMAPHORES + _SEMAPHORES_OF_A_WORKER * each for each in workers)
        held += (context.Lock() for _ in range(number))
    except OSError as error:
        if error.errno not in _NO_SEMAPHORE:
            return ""  # such as too many open files, of which more than the loader would fail
        where = "/dev/shm" if sys.platform == "linux" else "the system's semaphores"
        return (
            f"The data is loaded in the training process on {hostname()}, which is slower: loader workers cannot be "
            f"started, because of {where}: {error.strerror}. See `df /dev/shm` (in a container: --shm-size=8g); "
            "loader_workers=0 avoids this warning."
        )
    return ""


def data_loader(
    settings: DataSettings, data: MicroBatchReader, sampler: MicroBatchSampler, source: object = None
) -> Loading:
    """torch's loader; the workers unpickle `source` before `data`, whose code it may load."""
    workers = settings.loader_workers
    pin_memory = settings.pin_memory and torch.cuda.is_available()
    # Workers that are replaced could still write into a slot, and torch's pinning thread takes batches out earlier.
    has_slots = bool(workers) and settings.persistent_workers and not pin_memory
    return DataLoader(
        _Requested(source, data, _new_slots(sampler.slots) if has_slots else None),
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=settings.prefetch_factor if workers else None,
        persistent_workers=settings.persistent_workers and workers > 0,
        worker_init_fn=prepare_worker,
        generator=torch.Generator(),  # otherwise torch takes the workers' seeds from the global one
    )


def _new_slots(number: int) -> Tensor | None:
    """uint8 [number, SLOT_BYTES]: memory of this process that those forked from it share. It is taken only where it is
    written, and unlike torch's it is not in /dev/shm, which may be full."""
    if torch.multiprocessing.get_start_method() != "fork":
        return None
    return torch.frombuffer(mmap(-1, number * SLOT_BYTES), dtype=torch.uint8).view(number, SLOT_BYTES)


def received(loading: Loading) -> Iterator[Batch]:
    items = _started(loading)
    assert isinstance(loading.dataset, _Requested)
    slots = loading.dataset.slots
    try:
        for item in items:
            if isinstance(item, _WorkerError):
                raise item.error
            yield item.unpack(slots) if isinstance(item, PackedBatch) else item
    except (TandemError, RuntimeError) as failure:
        end_workers(loading, items)
        if isinstance(failure, TandemError) or "DataLoader worker" not in str(failure):
            raise
        raise LoaderWorkerDied(f"A loader process ended unexpectedly: {failure}", _advice(items)) from failure


def _started(loading: Loading) -> Iterator[Received]:
    """The loader's iterator; its workers collect no garbage of this process before `prepare_worker`."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return iter(loading)
    finally:
        if is_enabled:
            gc.enable()


def _advice(items: object) -> str:
    codes = [worker.exitcode for worker in getattr(items, "_workers", ())]
    # torch's workers end with 0 when a user's code raises KeyboardInterrupt, and those that are shut down as well
    if any(code is not None and code > 0 for code in codes) or (codes and not any(codes) and None not in codes):
        return "It ended by itself: its error is above, or in log/launcher.txt. loader_workers=0 shows it here, too."
    return "It usually ran out of memory: lower loader_workers or prefetch_factor, or set loader_workers to 0."


def end_workers(loading: Loading, items: object) -> None:
    # The only public way to end persistent workers is to drop all references, and tracebacks keep some.
    shut_down = getattr(items, "_shutdown_workers", None)  # only iterators with workers have it
    if shut_down is not None:
        # torch waits 5 s for each one, and one that has just been started, and not forked, imports for longer
        impatient = threading.Timer(_LEAVE_WITHIN_S, _terminate, (getattr(items, "_workers", ()),))
        impatient.daemon = True
        impatient.start()
        try:
            shut_down()
        finally:
            impatient.cancel()
        loading._iterator = None


def _terminate(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        worker.terminate()


@dataclass(frozen=True)
class _WorkerError:
    """A worker's error, sent to the trainer's process to be raised there."""

    error: TandemError


@dataclass(frozen=True)
class _Requested(Dataset["Received"]):
    """What torch's DataLoader asks for by (slot, micro-batch)."""

    source: object  # first, because it may load what unpickling the data needs
    data: MicroBatchReader
    slots: Tensor | None  # uint8 [N, bytes] of shared memory

    def __reduce__(self) -> tuple[Callable[[bytes], Dataset[Received]], tuple[bytes]]:
        # to workers that are not forked
        return _unpickled, (bytes(ForkingPickler.dumps((self.source, self.data, self.slots))),)

    def __getitem__(self, request: tuple[int, MicroBatch]) -> Received:
        slot, micro_batch = request
        # torch re-raises a worker's error from its text alone; returned as a value, it arrives unchanged.
        try:
            batch = self.data.batch(micro_batch)
        except TandemError as error:
            return _WorkerError(error)
        return batch if get_worker_info() is None else PackedBatch.pack(batch, self.slots, slot)


def _unpickled(content: bytes) -> Dataset[Received]:
    """Of a process that has just been started: what fails here would only be printed, and the process end."""
    try:
        return _Requested(*ForkingPickler.loads(content))
    except TandemError as error:
        return _Unreadable(error)
    except Exception as error:  # noqa: BLE001  # the code of the user can raise anything
        advice = "Loader workers are new processes, which import your code again; loader_workers=0 does without them."
        return _Unreadable(
            TrainingError(f"A loader process cannot read its data: {describe_code_error(error)}.", advice)
        )


@dataclass(frozen=True)
class _Unreadable(Dataset["Received"]):
    """Instead of a _Requested that a worker could not unpickle."""

    error: TandemError

    def __getitem__(self, request: tuple[int, MicroBatch]) -> Received:
        return _WorkerError(self.error)


def prepare_worker(_worker: int) -> None:
    """The worker_init_fn of the DataLoader."""
    ignore_foreign_sigterm()
    gc.freeze()  # what the trainer left: the threads that a process group in it would wait for are not in a fork
    gc.enable()  # which is off while workers start
    Finalize(None, _leave_at_once, exitpriority=_AFTER_QUEUES)


def _leave_at_once() -> None:
    """As forked workers end. Others would take down all that they have imported, for seconds, and be waited for."""
    if sys.exc_info()[0] is None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def ignore_foreign_sigterm() -> None:
    """From now on only the parent's SIGTERM ends this process.

    SIGTERM asks the trainer to make a backup and stop. Slurm, systemd and `kill -- -GROUP` send it to all processes,
    and a worker that dies of it makes torch stop the trainer before the backup is made.
    """
    if sys.platform == "linux":  # elsewhere a process cannot see who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_sigterm_of, args=(os.getppid(),), name="signals", daemon=True).start()


def _exit_on_sigterm_of(trainer: int) -> None:
    if sys.platform == "linux":
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
            pass
        os._exit(0)
