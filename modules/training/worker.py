"""One process of a run, from its config to its exit code: chooses the trainer and its collaborators."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from modules.checkpoint import Backups
from modules.config import ConfigError, ResumeError, TandemError, TrainConfig, TrainingError
from modules.distributed import Place, Store, open_store, resolve_backend, spawn
from modules.monitoring import Advice, Report, RunReport, SilentReport
from modules.run import (
    Commands,
    EventLog,
    Failure,
    RunFolder,
    SilentCommands,
    exit_code_of,
    forget_failures,
    give_room_back,
    read_events,
    record_failure,
    reserve_room,
    root_cause,
    start_rank_log,
    stop_rank_log,
)
from modules.run.console import warn
from modules.run.ending import ending_by, ending_message
from modules.run.refusals import is_final, refuse
from modules.run.restarts import folder_of_this_start, remember_folder, restarts_left, resume_of_restart
from modules.run.resume import LATEST, folder_to_resume
from modules.run.run_lock import training_in
from modules.training.calendar import Clocks, intervals
from modules.training.distributed_trainer import DataParallelTrainer, DistributedTrainer
from modules.training.fully_sharded_trainer import FullyShardedTrainer
from modules.training.generic_trainer import GenericTrainer
from modules.training.wishes import Ending, StoppedBeforeTraining, Wishes

OTHERS_SPEAK_S = 3.0


def run_worker(
    config: TrainConfig,
    folder: RunFolder,
    place: Place | None = None,
    store: Store | None = None,
    resume: str | None = None,
    *,
    supervised: bool = True,
) -> int:
    """Train as one rank of a group, or alone where `place` is None. Returns the protocol's exit code.

    A failure is written to log/rank-N.error.json; a supervisor tells it, and without one rank 0 does.
    """
    rank = 0 if place is None else place.rank
    log = start_rank_log(folder, rank)
    report = _report(config, folder, rank)
    wishes = _wishes(config, folder, rank)
    trainer: GenericTrainer | None = None
    if not supervised:
        forget_failures(folder, [rank])
    reserve_room(folder, rank)
    try:
        with wishes.signals(), training_in(folder) if rank == 0 else nullcontext():
            backup = find_backup(resume_of_restart(resume, folder), folder, report, rank)
            trainer = _trainer(config, folder, report, wishes, backup, place, store, supervised=supervised)
            return _exit_code(trainer.run(), in_supervised_group=supervised and place is not None)
    except StoppedBeforeTraining as stop:
        report.note(str(stop))
        report.finished(stop.ending.reason, stop.ending.exit_code)
        wishes.stopped()
        return _exit_code(stop.ending, in_supervised_group=supervised and place is not None)
    except BaseException as error:  # noqa: BLE001  # the boundary of the process: whatever it was, it is told
        training = trainer is not None and trainer.training
        failure = Failure.of(error, rank=rank, traceback=traceback.format_exc(), training=training)
        record_failure(folder, failure, unless_there=True)
        if not supervised:
            _tell(_cause(folder, failure), folder, report, rank)
        return exit_code_of(failure.kind)
    finally:
        give_room_back(folder, [rank])
        report.close()
        stop_rank_log(log)


def _tell(failure: Failure, folder: RunFolder, report: Report, rank: int) -> None:
    """Nobody else says why the run ended: rank 0 does, or the next one where rank 0 itself is what failed."""
    refuse(exit_code_of(failure.kind))
    if restarts_left() and not is_final(exit_code_of(failure.kind)):
        report.warning(
            f"Rank {failure.rank} on {failure.host} failed: {failure.message} torchrun starts all ranks again, "
            f"which go on from the newest backup ({restarts_left()} restarts left)."
        )
    elif rank == 0:
        _tell_the_end(failure, folder, report)
    elif rank == 1 and failure.rank == 0 and not _has_spoken(folder, failure):
        _tell_the_end(failure, folder, RunReport(EventLog(folder.events_file), None))


def _tell_the_end(failure: Failure, folder: RunFolder, report: Report) -> None:
    ending = ending_by(failure, read_events(folder.events_file))
    report.failed(failure)
    warn(ending_message(ending, folder))


def _has_spoken(folder: RunFolder, failure: Failure) -> bool:
    """Whether rank 0 said how the run ended, before or soon after its failure was known."""
    deadline = time.monotonic() + OTHERS_SPEAK_S
    while time.monotonic() < deadline:
        last = next(reversed(read_events(folder.events_file)), None)
        if last is not None and last["type"] == "finished" and float(str(last["t"])) > failure.time - OTHERS_SPEAK_S:
            return True
        time.sleep(0.1)
    return False


def _exit_code(ending: Ending, *, in_supervised_group: bool) -> int:
    """torchrun takes every other code than 0 for a failure; the supervisor reads the true one from the events."""
    return 0 if in_supervised_group else ending.exit_code


def spawn_workers(config: TrainConfig, folder: RunFolder, world_size: int, port: int, resume: str | None) -> int:
    """All ranks of this machine without torchrun; the supervisor reads how they ended from the folder."""
    try:
        spawn(_spawned_worker, world_size, port, (config, folder, resume))
    except TrainingError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _spawned_worker(place: Place, config: TrainConfig, folder: RunFolder, resume: str | None) -> None:
    sys.exit(run_worker(config, folder, place, resume=resume))


def shared_run_folder(config: TrainConfig, place: Place, store: Store, resume: str | None) -> RunFolder:
    """The run folder where torchrun or srun was started by hand: rank 0 makes it and tells the others its path."""
    if place.rank == 0:
        try:
            folder = choose_run_folder(config, resume)
            store.set("run_folder", json.dumps([str(folder.path)]))
        except TandemError as error:
            store.set("run_folder", json.dumps(["", error.message, error.advice]))
            raise
        return folder
    try:
        path, *refusal = json.loads(store.get("run_folder"))
    except RuntimeError as error:  # torch's DistStoreError and DistNetworkError
        raise TrainingError(
            f"rank {place.rank} was not told the run folder by rank 0, which has ended or hangs: {error}",
            "Look at the message of rank 0.",
        ) from error
    if not path:
        raise ConfigError(*refusal)
    return RunFolder(Path(path))


def choose_run_folder(config: TrainConfig, resume: str | None) -> RunFolder:
    """A new run's folder, or that of the run to continue; after a restart the one that the start before it has used."""
    if former := folder_of_this_start(Path(config.runs_dir)):
        return former
    folder = RunFolder.create(config) if resume is None else folder_to_resume(config, resume)
    remember_folder(folder)
    return folder


def find_backup(resume: str | None, folder: RunFolder, report: Report, rank: int = 0) -> Path | None:
    """The backup that --resume asks for; None for a new run, or where a run ended before its first backup.

    Ranks on other machines than rank 0 need not have it: they get it sent. Raises ResumeError where every backup is
    damaged.
    """
    if resume is None:
        return None
    if resume != LATEST:
        return Path(resume) if rank == 0 or Path(resume).is_dir() else None
    newest, damaged = Backups(folder.backup_dir, keep=1).newest_valid()
    for fault in damaged:
        report.warning(fault)
    if newest is not None:
        return newest
    if damaged:
        raise ResumeError(
            f"resume: no backup in {folder.backup_dir} is undamaged.",
            "Begin a new run under another --run_name.",
        )
    report.note(f"{folder.path} has no backup yet: beginning at the first step.")
    return None


def _trainer(
    config: TrainConfig,
    folder: RunFolder,
    report: Report,
    wishes: Wishes,
    backup: Path | None,
    place: Place | None,
    store: Store | None,
    *,
    supervised: bool,
) -> GenericTrainer:
    if place is not None:
        _, reason = resolve_backend(config.distributed_backend)
        if reason and not supervised:  # a supervisor has said so already
            report.note(reason)
        store = open_store(place, config.startup_timeout_s, report.note) if store is None else store
        kind = FullyShardedTrainer if config.training_mode == "fully_sharded" else DistributedTrainer
        trainer = kind(config, folder, report, wishes, backup, place, store)
        if not supervised:
            trainer.last_words = partial(_tell, folder=folder, report=report, rank=place.rank)
        return trainer
    if config.training_mode == "data_parallel":
        return DataParallelTrainer(config, folder, report, wishes, backup)
    return GenericTrainer(config, folder, report, wishes, backup)


def _report(config: TrainConfig, folder: RunFolder, rank: int) -> Report:
    if rank != 0:
        return SilentReport()
    board = folder.tensorboard_dir if config.tensorboard else None
    return RunReport(EventLog(folder.events_file), board, advice=Advice(config.loader_workers))


def _wishes(config: TrainConfig, folder: RunFolder, rank: int) -> Wishes:
    return Wishes(Commands(folder), Clocks(intervals(config))) if rank == 0 else Wishes(SilentCommands(), None)


def _cause(folder: RunFolder, own: Failure) -> Failure:
    """The failure that caused this one; an echo waits a moment for the cause to be written down."""
    deadline = time.monotonic() + OTHERS_SPEAK_S
    while own.is_echo and time.monotonic() < deadline:
        cause = root_cause(folder)
        if cause is not None and not cause.is_echo:
            return cause
        time.sleep(0.1)
    return root_cause(folder) or own


def supervised_by_us() -> bool:
    """Whether modules.run.supervise started this process, and will tell how it ends."""
    return "TANDEM_START" in os.environ
