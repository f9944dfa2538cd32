"""The processes of a run that a program starts: this one, new ones, or those that torchrun or srun has started."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import torch

from modules.config import ConfigError, DataError, ResumeError, TandemError, TrainConfig, TrainingError
from modules.distributed import RankEnv, RankExited, open_store, spawn
from modules.library.task import Task
from modules.monitoring import RunReport
from modules.run import EventLog, Failure, LaunchPlan, RunFolder, clear_failures, root_cause
from modules.run.console import echo
from modules.run.exit_codes import FINISHED, INTERRUPTED, PAUSED, TERMINATED
from modules.run.folder.commands import STOP_INTERRUPTED, request_command
from modules.run.folder.event_summary import EventSummary, follow_from_end
from modules.run.folder.failures import read_failures
from modules.run.launch.environment import quieten_torch, set_network_interfaces
from modules.run.launch.rank_env import launch_notes, use_own_slice
from modules.run.start import failed_to_form_group
from modules.run.supervise.launcher_log import LauncherReport, WorkerExit
from modules.run.supervise.outcome import RunEvidence, decide_outcome
from modules.run.supervise.signals import signals_handled
from modules.training.loop.run_location import shared_run_folder
from modules.training.worker import run_worker

_ERRORS: Mapping[str, type[TandemError]] = {"config": ConfigError, "data": DataError, "resume": ResumeError}
_NO_FAILURE = {FINISHED, INTERRUPTED, PAUSED, TERMINATED}
_REPORTED_WITHIN_S = 10.0


class NoGroup(TrainingError):
    """The processes could not form a group, and nothing has been trained."""


def train_here(task: Task, config: TrainConfig, folder: RunFolder, plan: LaunchPlan, resume: str | None) -> None:
    """Train in this process. Raises the TandemError of a failure, KeyboardInterrupt after a second Ctrl-C."""
    with _environment(plan.environment()):
        if config.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            if torch.cuda.is_available():
                raise ConfigError(
                    "device is 'cpu', but this process has used a GPU already, which cannot be hidden any more",
                    "Set CUDA_VISIBLE_DEVICES= before Python starts",
                )
        _forget_failures(folder, range(1))
        task.register()
        code = run_worker(config, folder, resume=resume)
    if (failure := root_cause(folder)) is not None or code not in _NO_FAILURE:
        raise _reported(folder, failure)


def train_in_processes(
    task: Task, config: TrainConfig, folder: RunFolder, plan: LaunchPlan, resume: str | None
) -> None:
    """Train in a new process for each rank of this machine. Raises the TandemError of the rank that failed first,
    NoGroup if they could not form a group."""
    ranks = plan.ranks()
    _forget_failures(folder, ranks)
    reader = follow_from_end(folder.events_file)
    exits: tuple[WorkerExit, ...] = ()
    with _environment(plan.environment()), _interrupts_sent_to(folder):
        quieten_torch(os.environ)  # of the new processes
        try:
            spawn(_train_as_rank, len(ranks), plan.port, (task.on_cpu(), config, folder, resume))
        except RankExited as error:
            exits = (WorkerExit(error.rank, error.rank_exit_code, error.pid, time=time.time(), is_first=True),)
    if not exits:
        return
    events, failures = EventSummary(), read_failures(folder)
    events.read(reader)
    if not failures and not events.count and exits[0].exit_code > 0:
        raise TrainingError(
            f"the process of rank {exits[0].rank} ended before it could train; its error is above",
            'A script that trains on several devices calls fit() below `if __name__ == "__main__":`',
        )
    outcome = decide_outcome(RunEvidence(1, events, failures, LauncherReport(exits), ranks=ranks))
    reported = _reported(folder, outcome.failure)
    if failed_to_form_group(outcome):
        raise NoGroup(str(reported)) from reported
    raise reported


def train_in_group(
    task: Task,
    config: TrainConfig,
    rank_env: RankEnv,
    resume: str | None,
    on_folder: Callable[[RunFolder], object],
) -> RunFolder:
    """Train as one of the processes that torchrun or srun has started; returns the folder that rank 0 has made, and
    calls `on_folder` with it first.

    Raises the TandemError of the rank that failed first, on every rank that can.
    """
    use_own_slice(os.environ, rank_env)
    set_network_interfaces(os.environ, rank_env.master_addr)
    for note in launch_notes(config, rank_env, os.environ):
        echo(note)
    store = open_store(rank_env, config.startup_timeout_s, echo)  # its keys are those of this call alone
    folder = shared_run_folder(config, rank_env, store, resume)
    on_folder(folder)
    events, reader = EventSummary(), follow_from_end(folder.events_file)
    task.register()
    code = run_worker(config, folder, rank_env, store, resume, supervised=False)
    if code not in _NO_FAILURE:
        raise _error(root_cause(folder))
    deadline = time.monotonic() + _REPORTED_WITHIN_S
    events.read(reader)
    while events.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.05)  # rank 0 still writes its last events
        events.read(reader)
    return folder


def _train_as_rank(rank_env: RankEnv, task: Task, config: TrainConfig, folder: RunFolder, resume: str | None) -> None:
    task.register()
    sys.exit(run_worker(config, folder, rank_env, resume=resume))


def _forget_failures(folder: RunFolder, ranks: range) -> None:
    clear_failures(folder, {*ranks, *(failure.rank for failure in read_failures(folder))})


def _reported(folder: RunFolder, failure: Failure | None) -> BaseException:
    """The exception for a failure, which becomes the last event of the run."""
    if failure is not None and failure.kind == "interrupted":
        return KeyboardInterrupt()
    if failure is not None:
        report = RunReport(EventLog(folder.events_file), None)
        report.failed(failure)
        report.close()
    return _error(failure)


def _error(failure: Failure | None) -> TandemError:
    """What the caller catches: which rank failed and why; the traceback, if it says more, is a note."""
    if failure is None:
        return TrainingError("the training ended without a result, and without a recorded error")
    if failure.kind in _ERRORS:
        return _ERRORS[failure.kind](failure.message, failure.advice)
    error = TrainingError(f"rank {failure.rank} failed: {failure.message}", failure.advice)
    if failure.traceback:
        error.add_note(f"On rank {failure.rank}, {failure.host}:\n{failure.traceback.rstrip()}")
    return error


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment with `variables`; what is changed within the block is undone."""
    former = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


@contextmanager
def _interrupts_sent_to(folder: RunFolder) -> Iterator[None]:
    """The first Ctrl-C stops the ranks after a backup; a second one ends them with KeyboardInterrupt."""
    interrupted: list[int] = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(number)
        request_command(folder, "stop", STOP_INTERRUPTED)

    with signals_handled([signal.SIGINT], on_interrupt):
        yield
