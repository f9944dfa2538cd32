"""One process of a run, from its config to its exit code: chooses the trainer and its collaborators."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from modules.config import AUTO, ConfigError, Interval, TrainConfig, TrainingError
from modules.config.hyperparameters import hyperparameters
from modules.distributed import (
    DistributedRanks,
    RankEnv,
    RankExited,
    RankGroup,
    RunStore,
    distributed_ranks,
    exit_at_once,
    exit_if_group_is_left,
    open_store,
    resolve_backend,
    single_process,
    spawn,
)
from modules.monitoring import PerformanceMonitor, Report, RunReport, SilentReport
from modules.monitoring.wandb_log import WandbLog
from modules.run import (
    Commands,
    EventLog,
    EventReader,
    Failure,
    RunFolder,
    SilentCommands,
    clear_failures,
    create_reserve,
    exit_code_of,
    record_failure,
    release_reserve,
    root_cause,
    start_rank_log,
    stop_rank_log,
)
from modules.run.batch_size.records import SearchRequest
from modules.run.benchmark.records import BenchmarkRequest
from modules.run.console import warn
from modules.run.folder.commands import REGROUP
from modules.run.folder.event_summary import EventSummary
from modules.run.folder.run_lock import training_lock
from modules.run.html_report import update_report
from modules.run.launch.fatal_startup import report_fatal_startup
from modules.run.launch.restarts import is_restarted_after, restarts_left, resume_after_restart, seconds_before
from modules.run.queued_output import queued_output
from modules.run.supervise.outcome import outcome_message, outcome_of_failure
from modules.torch_compat import leave_out_compiler
from modules.training.actions import ACTIONS
from modules.training.backup.find_backup import find_backup
from modules.training.device.choice import require_device
from modules.training.loop import run_info
from modules.training.loop.distributed_trainer import DataParallelTrainer, DistributedTrainer
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.loop.local_updates_trainer import LocalUpdatesTrainer
from modules.training.state.requests import PAUSE, STOP_REQUESTS, ControlRequests, Outcome, StoppedBeforeTraining
from modules.training.step.metrics import metric_names
from modules.training.step.triggers import TimeTrigger
from modules.training.studies.batch_size_finder import search_batch_size
from modules.training.studies.profiler import profiled
from modules.training.studies.step_benchmark import measure_steps

_LAST: Final = -100
# How long a rank gives the others to report what it would otherwise report itself.
_OTHERS_REPORT_WITHIN_S: Final = 3.0


def run_worker(
    config: TrainConfig,
    folder: RunFolder,
    rank_env: RankEnv | None = None,
    store: RunStore | None = None,
    resume: str | None = None,
    *,
    supervised: bool = True,
    on_end: Callable[[int], object] | None = None,
) -> int:
    """Train as one rank of a group, or alone if `rank_env` is None. Returns the run folder protocol's exit code.

    A failure is written to log/rank-N.error.json; a supervisor reports it, and without one rank 0 does. `on_end` gets
    the exit code once everything is reported. If a failure left a group that cannot be destroyed safely, the process
    then ends here.
    """
    rank, world_size = (0, 1) if rank_env is None else (rank_env.rank, rank_env.world_size)
    in_supervised_group = supervised and rank_env is not None
    trainer: GenericTrainer | None = None
    with queued_output():
        log = start_rank_log(folder, rank)
        report = _report(config, folder, rank, world_size)
        requests = control_requests(config, folder, rank)
        if not supervised:
            clear_failures(folder, [rank])
        create_reserve(folder, rank)
        try:
            require_device(config)
            with (
                requests.handle_signals(),
                training_lock(folder) if rank == 0 else nullcontext(),
                join_ranks(config, folder, report, rank_env, store, supervised=supervised) as ranks,
            ):
                backup = find_backup(resume_after_restart(resume, folder), folder, report, ranks)
                trainer = _trainer(config, folder, report, requests, ranks, backup)
                work = _work_of(trainer)
                with profiled(config, folder, rank, report):
                    outcome = work()
            code = _exit_code(outcome, in_supervised_group=in_supervised_group)
        except StoppedBeforeTraining as stop:
            report.note(str(stop))
            report.finished(stop.outcome.reason, stop.outcome.exit_code)
            requests.clear_stop()
            code = _exit_code(stop.outcome, in_supervised_group=in_supervised_group)
        except BaseException as error:  # noqa: BLE001  # the boundary of the process: whatever it was, it is reported
            is_training = trainer is not None and trainer.has_started
            failure = Failure.from_exception(error, rank=rank, traceback=traceback.format_exc(), training=is_training)
            record_failure(folder, failure, keep_existing=True)
            if not supervised:
                report_failure(cause_of(folder, failure), folder, report, rank)
            code = exit_code_of(failure.kind)
        finally:
            release_reserve(folder, [rank])
            report.close()
            if rank == 0:
                update_report(folder)
            stop_rank_log(log)
        if on_end is not None:
            on_end(code)
    exit_if_group_is_left(code)
    return code


def _work_of(trainer: GenericTrainer) -> Callable[[], Outcome]:
    """To train; or, in the processes of those programs, to search for a batch size or to measure some steps."""
    if (search := SearchRequest.from_environment(os.environ)) is not None:
        return partial(search_batch_size, trainer, search)
    if (benchmark := BenchmarkRequest.from_environment(os.environ)) is not None:
        return partial(measure_steps, trainer, benchmark)
    return trainer.run


@contextmanager
def join_ranks(
    config: TrainConfig,
    folder: RunFolder,
    report: Report,
    rank_env: RankEnv | None,
    store: RunStore | None,
    *,
    supervised: bool,
) -> Iterator[RankGroup]:
    """The ranks that train together, for the duration of the block."""
    requests = [*STOP_REQUESTS, REGROUP, *(action.name for action in ACTIONS)]
    if rank_env is None:
        with single_process(metric_names(requests, 1)) as alone:
            yield alone
        return
    _, reason = resolve_backend(config.distributed_backend)
    if reason and not supervised:  # a supervisor has said so already
        report.note(reason)
    with distributed_ranks(
        rank_env,
        open_store(rank_env, config.startup_timeout_s, report.note) if store is None else store,
        config,
        metric_names(requests, rank_env.world_size),
        folder,
        expected=(StoppedBeforeTraining,),
        on_note=report.note,
        on_waiting=report.waiting if rank_env.rank == 0 else None,
        on_force_exit=None if supervised else partial(report_failure, folder=folder, report=report, rank=rank_env.rank),
    ) as ranks:
        run_info.report_cluster(ranks.cluster_info, config, report)
        yield ranks


def _trainer(
    config: TrainConfig,
    folder: RunFolder,
    report: Report,
    requests: ControlRequests,
    ranks: RankGroup,
    backup: Path | None,
) -> GenericTrainer:
    """The trainer for the config's way of using several devices."""
    if isinstance(ranks, DistributedRanks):
        if config.fused_backward:
            raise ConfigError(
                f"fused_backward is true, but there are {ranks.world_size} processes, whose gradients are summed "
                "before they are applied; set it to false, or train on one GPU (device_ids)."
            )
        if config.training_mode == "fully_sharded":
            from modules.training.loop.fully_sharded_trainer import FullyShardedTrainer  # its import takes a second

            return FullyShardedTrainer(config, folder, report, requests, ranks, backup)
        if config.local_steps is not None and ranks.machines > 1:
            return LocalUpdatesTrainer(config, folder, report, requests, ranks, backup)
        if config.local_steps is not None:
            report.note(f"local_steps={config.local_steps} has no effect: all ranks are on one machine.")
        return DistributedTrainer(config, folder, report, requests, ranks, backup)
    kind = DataParallelTrainer if config.training_mode == "data_parallel" else GenericTrainer
    return kind(config, folder, report, requests, ranks, backup)


def _report(config: TrainConfig, folder: RunFolder, rank: int, world_size: int) -> Report:
    if rank != 0:
        return SilentReport()
    tensorboard_dir = folder.tensorboard_dir if config.tensorboard else None
    compared = hyperparameters(config, world_size)
    return RunReport(
        EventLog(folder.events_file),
        tensorboard_dir,
        monitor=PerformanceMonitor(config.loader_workers, balances=config.balance == AUTO),
        hyperparameters=compared,
        wandb=None if config.wandb == "off" else partial(WandbLog, config, compared, folder.path),
    )


def control_requests(config: TrainConfig, folder: RunFolder, rank: int) -> ControlRequests:
    """Rank 0 alone reads command files and the clock. Only machine 0 of several regroups; for others it is left over
    from there."""
    if rank != 0:
        return ControlRequests(SilentCommands(), None)
    before_s = seconds_before()
    own = ["stop"] if before_s is None else ["stop", REGROUP]
    commands = Commands(folder, [*own, *(action.name for action in ACTIONS if action.can_be_requested)])
    intervals = {action.name: action.interval(config) for action in ACTIONS}
    if config.max_minutes is not None:
        intervals[PAUSE] = Interval(config.max_minutes, "minutes")
    return ControlRequests(commands, TimeTrigger(intervals, {PAUSE: before_s or 0.0}))


def _exit_code(outcome: Outcome, *, in_supervised_group: bool) -> int:
    """torchrun takes every other code than 0 for a failure; the supervisor reads the true one from the events."""
    return 0 if in_supervised_group else outcome.exit_code


def spawn_workers(config: TrainConfig, folder: RunFolder, world_size: int, port: int, resume: str | None) -> int:
    """All ranks of this machine without torchrun; the supervisor reads how they ended from the folder."""
    try:
        spawn(_spawned_worker, world_size, port, (config, folder, resume))
    except RankExited as error:
        print(error.in_torchrun_format(), error, sep="\n", file=sys.stderr, flush=True)
        return error.exit_code
    except TrainingError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _spawned_worker(rank_env: RankEnv, config: TrainConfig, folder: RunFolder, resume: str | None) -> None:
    import_less(config)
    code = run_worker(config, folder, rank_env, resume=resume)
    end_without_teardown(code)
    sys.exit(code)


def import_less(config: TrainConfig) -> None:
    """For a process of its own, before it trains: torch.compile's front end is imported only if it is used."""
    if not config.compile:
        leave_out_compiler()


def end_without_teardown(code: int) -> None:
    """Let this process end once multiprocessing has cleaned up: Python would take down all that is imported, for
    seconds."""
    Finalize(None, exit_at_once, (code,), exitpriority=_LAST)


def supervised_by_us() -> bool:
    """Whether modules.run.supervise.supervisor started this process, and will report how it ends."""
    return "TANDEM_START" in os.environ


def report_failure(failure: Failure, folder: RunFolder, report: Report, rank: int) -> None:
    """Report why the run ended as rank 0, or as rank 1 if rank 0 itself is what failed."""
    report_fatal_startup(exit_code_of(failure.kind))
    if is_restarted_after(exit_code_of(failure.kind)):
        report.warning(
            f"Rank {failure.rank} on {failure.host} failed: {failure.message} torchrun starts all ranks again, "
            f"which resume from the newest backup ({restarts_left()} restarts left)."
        )
    elif rank == 0:
        _report_end(failure, folder, report)
    elif rank == 1 and failure.rank == 0 and not _rank0_reported(folder, failure):
        _report_end(failure, folder, RunReport(EventLog(folder.events_file), None))


def cause_of(folder: RunFolder, own: Failure) -> Failure:
    """The failure that caused this one; for a secondary failure, after a moment in which the cause is written down."""
    deadline = time.monotonic() + _OTHERS_REPORT_WITHIN_S
    while own.is_secondary and time.monotonic() < deadline:
        cause = root_cause(folder)
        if cause is not None and not cause.is_secondary:
            return cause
        time.sleep(0.1)
    return root_cause(folder) or own


def _report_end(failure: Failure, folder: RunFolder, report: Report) -> None:
    outcome = outcome_of_failure(failure, EventSummary.of_file(folder.events_file))
    report.failed(failure)
    warn(outcome_message(outcome, folder))


def _rank0_reported(folder: RunFolder, failure: Failure) -> bool:
    """Whether rank 0 reported how the run ended, before or soon after its failure was known."""
    events, reader = EventSummary(), EventReader(folder.events_file)
    deadline = time.monotonic() + _OTHERS_REPORT_WITHIN_S
    while time.monotonic() < deadline:
        events.read(reader)
        if events.finished_at is not None and events.finished_at > failure.time - _OTHERS_REPORT_WITHIN_S:
            return True
        time.sleep(0.1)
    return False
