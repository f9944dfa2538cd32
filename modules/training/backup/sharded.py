"""Backups of a model that is divided among the ranks: each rank copies and writes its own part, in the background.

Rank 0 decides which backups are written and when; it completes one when every part is on the disk and verified.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from modules.checkpoint import Backups, FileEntry, Rotation, TrainingState, part_files, write_part, write_texts
from modules.checkpoint.hashed_files import HashedFile
from modules.checkpoint.tensor_sink import TensorSink
from modules.distributed import DistributedRanks, parse_value
from modules.files import FileFault, file_size
from modules.machine import hostname
from modules.monitoring import Report
from modules.training.backup.part_channel import PartChannel, PartResult, SentFile
from modules.training.backup.state_copy import StateCopy, size_of
from modules.training.backup.writer import BackupWriter, fits, lower_priority


def sharded_backup_writer(
    folder: Path,
    rotation: Rotation,
    ranks: DistributedRanks,
    owners: Sequence[int],
    report: Report,
    *,
    merges: bool,
) -> BackupWriter:
    """The writer of this rank; `folder` is backup/ in the run folder. Called by all ranks.

    `owners` write the parts, rank 0 the first one; the other ranks hold the same as they.
    """
    groups = ranks.shared_folder_groups("runs_dir", folder.parent)
    near = next(group for group in groups.groups if 0 in group)
    stop = threading.Event()
    channel = PartChannel(ranks.process_group.store, ranks.rank, stop)
    if ranks.rank == 0:
        backups = _ShardedBackups(folder, rotation, channel, owners, set(owners).difference(near))
        return _FirstWriter(backups, report, ranks, stop, merges=merges)
    kept = Backups(folder, rotation.keep)
    if ranks.rank not in owners:
        return _Replica(kept, report, ranks, stop, merges=False)
    return _PartWriter(kept, report, ranks, stop, channel, folder if ranks.rank in near else None)


class _ShardedBackups(Backups):
    """On rank 0: its own part, and the parts of the others."""

    def __init__(
        self, folder: Path, rotation: Rotation, channel: PartChannel, owners: Sequence[int], far: Collection[int]
    ) -> None:
        """`far` are the owners that do not see `folder`."""
        super().__init__(folder, rotation.keep, rotation.every, rotation.days)
        self._channel, self._owners, self._far = channel, owners, far

    def write(self, state: TrainingState, config_json: str) -> Path:
        part, is_announced = state.part, False
        assert part is not None, "the state is sharded"

        def write_all(folder: Path) -> dict[str, FileEntry]:
            nonlocal is_announced
            self._channel.announce(part.ticket, folder.name)
            is_announced = True
            return self._write_all(folder, state, config_json)

        try:
            return self.write_files(state.position.step, write_all, part.count)
        except OSError:
            if not is_announced:
                self._channel.announce(part.ticket, "")
            raise

    def _write_all(self, folder: Path, state: TrainingState, config_json: str) -> dict[str, FileEntry]:
        """Every part is waited for, also after a failure: nobody writes any more when the folder is removed."""
        assert state.part is not None
        files: dict[str, FileEntry] = {}
        failure: OSError | None = None
        try:
            files |= write_texts(folder, state, config_json)
            files |= write_part(state, state.part, lambda name: HashedFile(folder / name))
        except OSError as error:
            failure = error
        for rank in self._owners[1:]:
            try:
                files |= self._part_of(rank, folder, state, is_wanted=failure is None)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return files

    def _part_of(self, rank: int, folder: Path, state: TrainingState, *, is_wanted: bool) -> dict[str, FileEntry]:
        """The files of the part of `rank`, which are in `folder` then."""
        assert state.part is not None
        ticket, received = state.part.ticket, dict[str, FileEntry]()
        names = part_files(state, self._owners.index(rank), state.part.count)
        if rank in self._far:
            try:
                if not is_wanted:
                    raise OSError("another part could not be written")
                for name in names:
                    with HashedFile(folder / name) as file:
                        for chunk in self._channel.receive(ticket, rank):
                            file.add(chunk)
                    received[name] = file.entry
            except OSError:
                self._channel.refuse(ticket, rank)
                raise
        result = self._channel.result(ticket, rank)
        if result.failure:
            raise OSError(result.failure)
        if result.files.keys() != set(names) or (received and received != result.files):
            raise OSError(f"the part of rank {rank} is not complete")
        for name, entry in result.files.items():
            if _size(folder / name) != entry.size:
                raise OSError(f"{folder / name}, which rank {rank} has written, is not there")
        return result.files


class _Numbered(BackupWriter):
    """What rank 0's writer and the others' have in common."""

    def __init__(
        self, backups: Backups, report: Report, ranks: DistributedRanks, stop: threading.Event, *, merges: bool
    ) -> None:
        super().__init__(backups, report, merges=merges)
        self._ranks, self._stop, self._ticket = ranks, stop, 0

    @contextmanager
    def completing(self, *, alone: bool) -> Iterator[None]:
        try:
            with super().completing(alone=alone):
                yield
        finally:
            self._stop.set()

    def _numbered(self, state: TrainingState) -> TrainingState:
        """With the next ticket, unless it has one. All ranks count the same."""
        assert state.part is not None, "the state is sharded"
        if state.part.ticket:
            return state
        self._ticket += 1
        return replace(state, part=replace(state.part, ticket=self._ticket))

    def _all_copied(self, is_copied: bool) -> bool:
        return all(self._ranks.gather("backup copied", "copied" if is_copied else ""))


class _FirstWriter(_Numbered):
    """Rank 0's: it tells the others which of their copies are still wanted."""

    def submit(self, state: TrainingState, config_json: str) -> None:
        super().submit(self._numbered(state), config_json)

    def write(self, state: TrainingState, config_json: str) -> None:
        try:
            super().write(self._numbered(state), config_json)
        except OSError:
            self._ranks.gather("backup written", "")
            raise
        self._ranks.gather("backup written", "")

    def _free_copy(self, size: int) -> StateCopy | None:
        copy = super()._free_copy(size)
        with self._changed:
            parts = [job.state.part for job in (self._running, self._waiting) if job is not None]
        self._ranks.gather("backups under way", json.dumps([part.ticket for part in parts if part is not None]))
        return copy


class _Replica(_Numbered):
    """Of a rank whose shards another one writes: it takes part in what all agree on."""

    def submit(self, state: TrainingState, config_json: str) -> None:
        self._ranks.gather("backups under way", "")
        if not self._all_copied(is_copied=True):
            self._ranks.gather("backup written", "")

    def write(self, state: TrainingState, config_json: str) -> None:
        self._ranks.gather("backup written", "")


@dataclass(frozen=True)
class _Job:
    state: TrainingState
    copy: StateCopy | None  # None: training waits until it is written


class _PartWriter(_Numbered):
    """Of every other rank: its thread writes this rank's part of the backups that rank 0 announces."""

    def __init__(
        self,
        backups: Backups,
        report: Report,
        ranks: DistributedRanks,
        stop: threading.Event,
        channel: PartChannel,
        folder: Path | None,
    ) -> None:
        """`folder` is None if this machine does not see that of rank 0."""
        super().__init__(backups, report, ranks, stop, merges=False)
        self._channel, self._folder = channel, folder
        self._jobs: dict[int, _Job] = {}  # by ticket: what rank 0 may announce
        self._thread: threading.Thread | None = None

    def submit(self, state: TrainingState, config_json: str) -> None:
        state = self._numbered(state)
        wanted = parse_value(list[int], self._ranks.gather("backups under way", "")[0], "the list of backups under way")
        with self._changed:
            self._drop([ticket for ticket in self._jobs if ticket not in wanted])
            copy = self._idle.pop() if self._idle else StateCopy() if fits(size_of(state)) else None
        copied = self._try_to_copy(copy, state)
        if self._all_copied(copied is not None):
            assert copied is not None
            self._add(_Job(copied, copy))
        else:
            self._write_now(state)

    def write(self, state: TrainingState, config_json: str) -> None:
        self._write_now(self._numbered(state))

    def _write_now(self, state: TrainingState) -> None:
        self._add(_Job(state, None))
        self._ranks.gather("backup written", "")

    def _add(self, job: _Job) -> None:
        assert job.state.part is not None
        with self._changed:
            self._jobs[job.state.part.ticket] = job
            if self._thread is None:
                thread = threading.Thread(target=self._write_parts, name="backup", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system refuses another thread; rank 0 is not to wait for the part
                    self._drop([job.state.part.ticket])
                    self._channel.answer(job.state.part.ticket, PartResult(failure=f"{self._named()}: {error}"))
                else:
                    self._thread = thread

    def _drop(self, tickets: Collection[int]) -> None:
        """Forget copies; the memory of one is kept for the next."""
        for ticket in tickets:
            copy = self._jobs.pop(ticket).copy
            if copy is not None and not self._idle:
                self._idle.append(copy)

    def _write_parts(self) -> None:
        """The thread: follows the announcements as long as there are copies."""
        self._use_gpu()
        try:
            while True:
                with self._changed:
                    if not self._jobs:
                        self._thread = None
                        return
                announced = self._channel.next_announcement()
                with self._changed:
                    self._drop([ticket for ticket in self._jobs if ticket < announced.ticket])
                    job = self._jobs.pop(announced.ticket, None)
                if job is not None and job.copy is not None:  # training goes on meanwhile
                    lower_priority(size_of(job.state))
                if announced.folder:
                    self._channel.answer(announced.ticket, self._try_to_write_part(job, announced.folder))
                with self._changed:
                    if job is not None and job.copy is not None and not self._idle:
                        self._idle.append(job.copy)
        except Exception as error:  # noqa: BLE001  # the main thread learns from the watchdog that the run ends
            if not self._stop.is_set():
                self._report.warning(f"The backups of this rank have ended: {error}.")

    def _try_to_write_part(self, job: _Job | None, folder: str) -> PartResult:
        try:
            if job is None or job.state.part is None:
                raise OSError("it has no copy of its part")
            return PartResult(files=write_part(job.state, job.state.part, self._opener(job.state.part.ticket, folder)))
        except Exception as error:  # noqa: BLE001  # rank 0 is to learn of it, whatever it is
            return PartResult(failure=f"{self._named()}: {error}"[:4000])

    def _named(self) -> str:
        return f"rank {self._ranks.rank} ({hostname()})"

    def _opener(self, ticket: int, name: str) -> Callable[[str], AbstractContextManager[TensorSink]]:
        if self._folder is None:
            return lambda _: SentFile(self._channel, ticket)
        folder = self._folder / name
        return lambda file: HashedFile(folder / file)


def _size(file: Path) -> int | None:
    try:
        return file_size(file)
    except (OSError, FileFault):
        return None
