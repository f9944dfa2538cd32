"""Writes the backups of a run, in a thread while training goes on; rank 0's, unless the model is sharded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from modules.checkpoint import Backups, TrainingState
from modules.machine.host import usable_memory_mib
from modules.monitoring import Report
from modules.training.backup.state_copy import StateCopy, size_of

MOST_COPIES: Final = 2  # one that is being written and one that waits
TRAINING_CONTINUES: Final = "Training continues."
_SPARE_MIB: Final = 512  # of host memory, which a copy leaves free
_LIMIT_S: Final = 1.0  # for a backup under way, when a rank of a group fails
# Of the thread. Training comes first: if it uses all cores, a large backup takes what it leaves, and so longer. A small
# one costs less than 0.1 s of processor time in any case, and is not to be kept waiting by other programs.
_NICENESS_LARGE: Final = 19
_NICENESS_SMALL: Final = 5
_LARGE_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class _Job:
    state: TrainingState
    config_json: str
    copy: StateCopy  # which holds the tensors of `state`

    @property
    def step(self) -> int:
        return self.state.position.step


class BackupWriter:
    """Every method is called by the main thread."""

    def __init__(self, backups: Backups, report: Report, *, merges: bool) -> None:
        """`merges`: of several backups that wait for the disk only the newest is written. Without it, training waits
        until each of them has been copied, so that none is missing."""
        self._backups, self._report, self._merges = backups, report, merges
        self._changed = threading.Condition()  # of all that follows
        self._running: _Job | None = None
        self._waiting: _Job | None = None
        self._idle: list[StateCopy] = []
        self._failed_step: int | None = None  # of the last backup, unless that is complete
        self._is_abandoned = False
        self._has_told: set[str] = set()
        self._follows = TRAINING_CONTINUES  # what a warning says after a backup has failed
        self._gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def submit(self, state: TrainingState, config_json: str) -> None:
        """Copy `state` and return while it is written; if the copy does not fit into memory, write it at once.

        Whether it succeeds is reported. Raises OSError only for what is written at once.
        """
        copy = self._free_copy(size_of(state))
        copied = self._try_to_copy(copy, state)
        if not self._all_copied(copied is not None) or copy is None or copied is None:
            self._tell_once(
                "The host's free memory is too small for a copy of what is trained: backups are not written in the "
                "background, and training waits for each of them."
            )
            self.write(state, config_json)
            return
        self._report.backing_up(state.position.step)
        with self._changed:
            self._waiting = _Job(copied, config_json, copy)
            if self._running is None:
                self._running, self._waiting = self._waiting, None
                try:
                    threading.Thread(target=self._write_all, args=(self._running,), name="backup", daemon=True).start()
                except RuntimeError as error:  # the system refuses another thread
                    self._running, self._failed_step = None, state.position.step
                    self._idle.append(copy)
                    self._report.backing_up(None)
                    self._report.warning(not_written("backup", state.position.step, error))

    def write(self, state: TrainingState, config_json: str) -> None:
        """Write `state` now; a backup that is under way is completed before. Raises OSError."""
        with self._changed:
            if self._merges:
                self._waiting = None  # `state` takes its place
        self.wait()
        step = state.position.step
        self._failed_step = step
        self._report.backing_up(step)
        try:
            self._report.sync_events()
            self._report.backup(self._backups.write(state, config_json), step)
            self._failed_step = None
        finally:
            self._report.backing_up(None)

    def wait(self, limit_s: float | None = None) -> int | None:
        """Wait for what is under way, at most `limit_s`. Returns the step of the last backup if it has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._running is None, limit_s)
            return self._failed_step

    def complete(self) -> int | None:
        """As `wait`, once training has ended: another backup follows, whatever becomes of those under way."""
        self._follows = "Training has ended, and another backup is tried before the run ends."
        return self.wait()

    @contextmanager
    def completing(self, *, alone: bool) -> Iterator[None]:
        """Around training: an error in the block leaves it once the backups under way are complete.

        Unless this rank is `alone` it waits for a second only: the others are in a collective. KeyboardInterrupt, which
        is how a second Ctrl-C ends a run at once, does not wait.
        """
        try:
            yield
        except Exception:
            self._follows = "The run ends because of an error, and does not try again."
            self.wait(None if alone else _LIMIT_S)
            self._is_abandoned = True
            raise
        except BaseException:
            self._is_abandoned = True
            raise

    def newest_valid(self) -> tuple[Path | None, list[str]]:
        """As `Backups.newest_valid`, once those under way are complete."""
        self.wait()
        return self._backups.newest_valid()

    def best_steps(self) -> set[int]:
        """As `Backups.best_steps`, with those of the backups under way."""
        with self._changed:
            under_way = {job.state.position.best_step for job in (self._running, self._waiting) if job is not None}
        return self._backups.best_steps() | {step for step in under_way if step is not None}

    def _try_to_copy(self, copy: StateCopy | None, state: TrainingState) -> TrainingState | None:
        """None if the memory is not enough."""
        try:
            return None if copy is None else copy.take(state)
        except (RuntimeError, MemoryError, OSError):  # torch's and mmap's errors for memory that the system refuses
            return None

    def _all_copied(self, is_copied: bool) -> bool:
        """Whether every rank that writes has its copy."""
        return is_copied

    def _free_copy(self, size: int) -> StateCopy | None:
        """Memory for a copy of `size` bytes; None if the host has too little and there is none to wait for."""
        with self._changed:
            if self._merges and self._waiting is not None:
                replaced, self._waiting = self._waiting, None
                self._report.note(
                    f"The backup of step {replaced.step} is left out: the former one is still being written, and a "
                    "newer one takes its place."
                )
                return replaced.copy
            copies = len([each for each in (self._running, self._waiting) if each is not None])
            if not self._idle and copies < MOST_COPIES and fits(size):
                return StateCopy()
            if not self._idle and copies:
                self._tell_once(
                    "Backups are due more often than they can be written: training waits. Set backup_every higher."
                )
                self._changed.wait_for(lambda: bool(self._idle))
            return self._idle.pop() if self._idle else None

    def _write_all(self, job: _Job | None) -> None:
        """The thread: writes `job`, then what waits."""
        self._use_gpu()
        while job is not None:
            lower_priority(size_of(job.state))
            failure = self._try_to_write(job)
            with self._changed:
                if not self._idle:  # one copy is kept for the next backup
                    self._idle.append(job.copy)
                self._failed_step = job.step if failure else None
                job = self._running = self._waiting
                self._waiting = None
                if job is None and not self._is_abandoned:
                    self._report.backing_up(None)
                self._changed.notify_all()

    def _use_gpu(self) -> None:
        """Let this thread have this rank's GPU. Threads begin with GPU 0, where reading a tensor, or giving back pinned
        memory, could open a context for every rank."""
        if self._gpu is not None:
            with suppress(RuntimeError):  # of a GPU that has failed: the main thread, which waits for this one, says so
                torch.cuda.set_device(self._gpu)

    def _try_to_write(self, job: _Job) -> str:
        """Why the backup could not be written; empty if it is complete."""
        try:
            self._report.sync_events()
            folder = self._backups.write(job.state, job.config_json)
            if not self._is_abandoned:
                self._report.backup(folder, job.step)
        except Exception as error:  # noqa: BLE001  # main thread and user are to learn of it, whatever it is
            failure = not_written("backup", job.step, error, self._follows)
            if not self._is_abandoned:
                self._report.warning(failure)
            return failure
        return ""

    def _tell_once(self, text: str) -> None:
        if text not in self._has_told:
            self._has_told.add(text)
            self._report.note(text)


def not_written(name: str, step: int, error: BaseException, follows: str = TRAINING_CONTINUES) -> str:
    """The warning after an action whose files could not be written."""
    return f"The {name} at step {step} could not be written: {error}. {follows}"


def fits(size: int) -> bool:
    """Whether the host has memory for a copy of `size` bytes."""
    return (size >> 20) + _SPARE_MIB <= usable_memory_mib().available


def lower_priority(size: int) -> None:
    """Of this thread and those that it starts, for a backup of `size` bytes; only Linux has priorities of threads."""
    if sys.platform == "linux":
        thread, niceness = threading.get_native_id(), _NICENESS_LARGE if size >= _LARGE_BYTES else _NICENESS_SMALL
        with suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
