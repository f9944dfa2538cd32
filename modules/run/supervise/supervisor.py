"""Supervises the processes of one launch until the last has ended, and reports the outcome."""

from __future__ import annotations

import math
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Final, Self

from modules.files import mask_secrets, remove_tree
from modules.run.console import warn
from modules.run.exit_codes import FINISHED, exit_code_of
from modules.run.folder.commands import clear_commands
from modules.run.folder.event_summary import REGROUPING, EventSummary, follow_from_end
from modules.run.folder.events import EventLog
from modules.run.folder.failures import (
    Failure,
    clear_failures,
    is_any_running,
    read_failures,
    record_failure,
    release_reserve,
)
from modules.run.folder.folder_guard import FolderGuard
from modules.run.folder.run_folder import RunFolder, not_writable_error
from modules.run.folder.run_lock import remove_half_written, supervisor_lock, training_has_ended
from modules.run.hosts.measuring import passed_on
from modules.run.html_report import update_report
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.fatal_startup import is_fatal
from modules.run.launch.plan import TORCHRUN, LaunchPlan
from modules.run.launch.rank_env import without_rank
from modules.run.launch.torchrun_folder import torchrun_folder
from modules.run.supervise.child_process import exit_waiter, launcher_name, start_child
from modules.run.supervise.launcher_log import LauncherLogFile, parse_launcher_log
from modules.run.supervise.outcome import (
    CODE_OF_STOP,
    CONTINUE_JOINED,
    REASON_OF_CODE,
    RunEvidence,
    RunOutcome,
    decide_outcome,
    outcome_message,
)
from modules.run.supervise.process_tree import ProcessTree, waits_for_a_disk
from modules.run.supervise.restart_tracker import RestartTracker
from modules.run.supervise.stop_requests import StopRequests

_POLL_EVERY_S = 0.1
_LOCK_FREE_WITHIN_S = 2.0  # after the last rank was killed
_HOUSEKEEPING_EVERY_S = 2.0
_NOTHING_TO_KEEP_S: Final = 5.0


def any_failure(failure: Failure) -> bool:
    """For `may_restart`: whatever it was, starting again from the newest backup may help."""
    return True


class Supervisor:
    """Runs one command to its end; Ctrl-C or SIGTERM requests a graceful stop, a second one stops at once."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: RunFolder,
        *,
        environment: Mapping[str, str] | None = None,
        ranks: range = range(1),
        watched: range | None = None,
        collect_remote_failures: Callable[[], None] | None = None,
        store_secret: str = "",
        may_restart: Callable[[Failure], bool] | None = None,
        cannot_start: Callable[[], Failure | None] = lambda: None,
        grace: GracePeriods | None = None,
        clears_commands: bool = True,
    ) -> None:
        """Prepare to run `argv`; `ranks` are those of this node, `watched` those whose failures are recorded here.

        `collect_remote_failures` is called before a failure is diagnosed, so that other machines can report theirs.
        `store_secret` is what only the processes of this start know, on all its machines; one machine makes its own.
        `may_restart`: whether a restart may overcome a failure; it is not reported then, so that the caller can start
        again. `cannot_start` is asked until a rank has started: why none will, for which the launcher would wait long.
        Processes that outlive the `grace` periods are killed. `clears_commands`: of an earlier start; not if the
        caller has, and a stop may have been requested since.
        """
        self._argv = list(argv)
        self._folder = folder
        self._environment = dict(environment or {})
        self._ranks = ranks
        self._watched = ranks if watched is None else watched
        self._collect_remote_failures = collect_remote_failures
        self._may_restart = may_restart
        self._cannot_start = cannot_start
        self._clears_commands = clears_commands and 0 in ranks
        self._start_failure: Failure | None = None
        self._has_started = False
        self._store_secret = store_secret or secrets.token_hex(32)
        self._grace = grace or GracePeriods()
        self.outcome: RunOutcome | None = None
        self._started_at = 0.0  # Unix time
        self.restart_was_stopped = False  # by a signal after a failure
        self._tree = ProcessTree()
        self._log = LauncherLogFile(folder.launcher_log)
        self._watch = ProcessWatch(
            self._argv,
            folder,
            self._tree,
            self._log,
            ranks=ranks,
            watched=self._watched,
            grace=self._grace,
            warn=self._warn,
            report_restart=self._report_own_restart,
        )
        within_s = self._grace.stop_s
        self._requests = StopRequests(folder, self._tree, argv, has_first_rank=0 in ranks, within_s=within_s)

    @classmethod
    def from_plan(
        cls,
        plan: LaunchPlan,
        folder: RunFolder,
        collect_remote_failures: Callable[[], None] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        store_secret: str = "",
        may_restart: Callable[[Failure], bool] | None = None,
        cannot_start: Callable[[], Failure | None] = lambda: None,
        clears_commands: bool = True,
    ) -> Self:
        """The supervisor of this node's part of a plan, with more `environment`; machine 0 watches all ranks."""
        return cls(
            plan.argv(),
            folder,
            environment={**plan.environment(), **(environment or {})},
            ranks=plan.ranks(),
            watched=range(plan.world_size or 0) if plan.node_rank == 0 else None,
            collect_remote_failures=collect_remote_failures,
            store_secret=store_secret,
            may_restart=may_restart,
            cannot_start=cannot_start,
            grace=GracePeriods.of_start(os.environ),
            clears_commands=clears_commands,
        )

    def run(self) -> int:
        """Run the command to its end, leave no process behind, and return the exit code of the run.

        Raises ConfigError if the run folder cannot be written, ResumeError if the run is already being trained.
        Killing this process does not affect the training, which still reads commands from the run folder.
        """
        with supervisor_lock(self._folder):
            return self._run()

    def _run(self) -> int:
        try:
            self._clear_last_start()
            settings = [f"{name}={value}" for name, value in self._environment.items()]
            command = mask_secrets(shlex.join([*settings, *self._argv]))
            log = self._log.open(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {command}")
        except OSError as error:
            raise not_writable_error(self._folder.path, error) from error
        environment = without_rank(os.environ)
        folder = torchrun_folder(environment) if str(TORCHRUN) in self._argv else nullcontext()
        with log, self._requests.handlers_installed(), folder, closing(self._watch):
            child = start_child(self._argv, log, self._child_environment(environment))
            self._watch.launcher_pid = child.pid
            try:
                with exit_waiter(child) as waiter:
                    while child.poll() is None:
                        self._requests.handle(child)
                        self._watch.check()
                        self._end_hopeless_start()
                        waiter.wait(_POLL_EVERY_S)
            finally:
                # Helper processes of a successful run are about to exit; those of a failed one may hang.
                self._tree.terminate(patience_s=2.0 if child.poll() == 0 else 0.0)
                child.wait()
            if self._collect_remote_failures is not None and child.returncode != 0 and not self.was_forced:
                self._collect_remote_failures()
            self.outcome = self._decide_outcome(child.returncode)
            release_reserve(self._folder, self._ranks)
            # a rank that waits for a dead disk keeps training for good
            if 0 in self._ranks and training_has_ended(self._folder, within_s=_LOCK_FREE_WITHIN_S):
                remove_half_written(self._folder)
            self._requests.was_requested = self.outcome.exit_code in CODE_OF_STOP.values()
            self._prevent_restart_after_stop(self.outcome)
            if not self.can_restart:
                self.report()
        return self.outcome.exit_code

    @property
    def can_restart(self) -> bool:
        """Whether the caller may start again: after a failure that this may overcome, which is not reported, or because
        the run `is_regrouping`."""
        outcome, may_restart = self.outcome, self._may_restart
        if self.is_regrouping:
            return not self.is_stopped
        if may_restart is None or outcome is None or outcome.failure is None or is_fatal(outcome.exit_code):
            return False
        return may_restart(outcome.failure) and not self.is_stopped

    @property
    def is_regrouping(self) -> bool:
        """Whether the run has ended at a backup, as asked, to go on with other machines."""
        return self.outcome is not None and self.outcome.phase == REGROUPING and self.outcome.exit_code == FINISHED

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has requested a stop."""
        return bool(self._requests.stop_reason)

    @property
    def stop(self) -> tuple[str, str]:
        """The reason of the stop that a signal has requested, and that signal in words; empty without one."""
        return self._requests.stop_reason, self._requests.stopped_by

    @property
    def stopped_by(self) -> str:
        """The signal that has requested a stop, in words; empty without one."""
        return self._requests.stopped_by

    @property
    def was_forced(self) -> bool:
        """Whether a second signal has stopped the run at once."""
        return self._requests.was_forced

    def _end_hopeless_start(self) -> None:
        """Kill the launcher if no rank will start; once one has, it notices such things itself."""
        self._has_started = self._has_started or is_any_running(self._folder, self._ranks)
        if not self._has_started and self._start_failure is None:
            self._start_failure = self._cannot_start()
        if self._start_failure is not None:
            self._watch.killed_pids.update(self._tree.kill())

    def _prevent_restart_after_stop(self, outcome: RunOutcome) -> None:
        """If a signal has come since the processes ended, a run that could start again ends as a stopped one."""
        could_restart = self.can_restart
        self._requests.take_late()
        if could_restart and self.is_stopped:
            self.restart_was_stopped = True
            self.outcome = RunOutcome(CODE_OF_STOP[self._requests.stop_reason], None, outcome.phase)
            cause = cause_of_restart(outcome.failure) if outcome.failure else "it was to go on with other machines."
            warn(f"Stopped as requested instead of starting again: {cause} {self._how_to_continue()}")

    def _how_to_continue(self) -> str:
        return f"To continue, {CONTINUE_JOINED}." if self._folder.machine else "Continue with --resume latest."

    def report_restart(self, number: int, allowed: int) -> None:
        """Say that all machines start again, and why, instead of `report`."""
        self._warn_of_restart(None if self.outcome is None else self.outcome.failure, number, allowed)

    def _warn_of_restart(self, failure: Failure | None, number: int, allowed: int) -> None:
        self._warn(f"Restart {number} of {allowed} from the newest backup, because {cause_of_restart(failure)}")

    def _clear_last_start(self) -> None:
        self._folder.log_dir.mkdir(parents=True, exist_ok=True)
        self._started_at = time.time()
        clear_failures(self._folder, self._watched)
        release_reserve(self._folder, self._ranks)  # of processes that were killed
        remove_tree(self._folder.received_dir)  # of processes that were killed; none receives before all have started
        if self._clears_commands:
            clear_commands(self._folder)

    def _child_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {
            **environment,
            "PYTHONSAFEPATH": "1",  # processes that Python starts with -c would import from the current folder
            **self._environment,
            **self._tree.variables,
            STORE_SECRET: self._store_secret,
        }

    def _report_own_restart(self, number: int, allowed: int) -> None:
        """Report why the previous attempt of this torchrun failed; what it has left is not that of the new one."""
        self._warn_of_restart(self._decide_outcome(returncode=1).failure, number, allowed)
        clear_failures(self._folder, [each.rank for each in read_failures(self._folder)])
        self._log.start_new_attempt()

    def _warn(self, text: str) -> None:
        warn(f"Warning: {text}")
        if 0 in self._ranks:
            log = EventLog(self._folder.events_file)
            log.write("warning", message=text)
            log.close()

    def _decide_outcome(self, returncode: int) -> RunOutcome:
        self._watch.read_rest()
        if self._start_failure is not None and self.is_stopped:  # nobody waits for that start any more
            return RunOutcome(CODE_OF_STOP[self._requests.stop_reason], None)
        return decide_outcome(
            RunEvidence(
                returncode=returncode,
                events=self._watch.events,
                failures=self._failures_of_this_start(),
                report=parse_launcher_log(self._log.text(), self._ranks.start),
                stop_reason=self._requests.stop_reason,
                was_forced=self._requests.was_forced,
                killed_pids=frozenset(self._watch.killed_pids),
                launcher=launcher_name(self._argv),
                launcher_pid=self._watch.launcher_pid,
                ranks=self._ranks,
                lost_folder=str(self._folder.path) if self._watch.is_folder_lost else "",
            )
        )

    def _failures_of_this_start(self) -> list[Failure]:
        """What this machine's ranks recorded of other ranks at an earlier start was not cleared, and is left out."""
        recorded = read_failures(self._folder)
        found = [each for each in recorded if each.rank in self._watched or each.time >= self._started_at]
        return found if self._start_failure is None else [*found, self._start_failure]

    def report(self) -> None:
        """Write the events that a dead rank 0 could not write, and print the failure message."""
        outcome = self.outcome
        assert outcome is not None, "the run has not ended"
        if 0 in self._ranks:
            write_last_events(self._folder, self._watch.events, outcome, self._requests.stop_reason)
        if message := outcome_message(outcome, self._folder):
            warn(message)
        elif self.was_forced and math.isinf(self._grace.stop_s):
            warn(f"Stopped at once, without a backup; {resume_hint(self._folder, self._ranks)}")


def write_last_events(folder: RunFolder, events: EventSummary, outcome: RunOutcome, stop_reason: str) -> None:
    """Write the `error` and `finished` events that a dead rank 0 could not write; `events` are those that it wrote."""
    failure = outcome.failure
    error = events.error
    is_reported = failure is None or (error is not None and (error.rank, error.kind) == (failure.rank, failure.kind))
    is_finished = events.exit_code is not None
    if is_reported and is_finished:
        return
    log = EventLog(folder.events_file)
    if failure is not None and not is_reported:
        log.write("error", **failure.event_fields())
    if not is_finished:
        requested = stop_reason if outcome.exit_code else ""  # a signal may come after the end
        reason = "failed" if failure else requested or REASON_OF_CODE.get(outcome.exit_code, "finished")
        log.write("finished", reason=reason, exit_code=outcome.exit_code)
    log.close()
    update_report(folder)


def cause_of_restart(failure: Failure | None) -> str:
    """The failure in a sentence's end."""
    return f"rank {failure.rank} on {failure.host} failed: {failure.message}" if failure else "a rank failed."


def resume_hint(folder: RunFolder, ranks: range) -> str:
    """What --resume latest does after a stop without a backup; only the machine of rank 0 can see the backups."""
    if folder.machine:
        return f"to continue, {CONTINUE_JOINED}."
    if 0 in ranks and not any(folder.backup_dir.glob("step-*")):
        return "there is none yet, so --resume latest starts at the first step."
    return "--resume latest continues from the last one."


class ProcessWatch:
    """What a run's processes and events show, and how long the processes may stay; `check` looks anew."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: RunFolder,
        tree: ProcessTree,
        log: LauncherLogFile,
        *,
        ranks: range,
        watched: range,
        grace: GracePeriods,
        warn: Callable[[str], None],
        report_restart: Callable[[int, int], None],
    ) -> None:
        """`report_restart` is called with the number of a restart by torchrun, and how many it allows."""
        self._folder, self._tree, self._log, self._ranks, self._grace = folder, tree, log, ranks, grace
        self._warn, self._report_restart = warn, report_restart
        self._launcher = launcher_name(argv)
        self._restarts = RestartTracker(tree, argv)
        self._recorded_failures = RecordedFailures(folder, watched, self._restarts)
        self._guard = FolderGuard(folder)
        self._reader = follow_from_end(folder.events_file)
        self._failed_at: float | None = None
        self._finished_at: float | None = None
        self._alone_since: float | None = None
        self._last_housekeeping = 0.0
        self.events = EventSummary()
        self.killed_pids: set[int] = set()
        self.launcher_pid = 0

    @property
    def is_folder_lost(self) -> bool:
        """Whether the run folder was gone, or is now."""
        return self._guard.has_restored or (self.events.has_started and not self._folder.events_file.exists())

    def close(self) -> None:
        """The processes have ended."""
        self._guard.close()

    def check(self) -> None:
        """Kill what is overdue; now and then also look for what takes longer to see. Call it several times a second."""
        now = time.monotonic()
        self.read_progress(now)
        self._kill_overdue(now)
        if now - self._last_housekeeping >= _HOUSEKEEPING_EVERY_S:
            self._last_housekeeping = now
            self._do_housekeeping(now)

    def read_progress(self, now: float) -> None:
        """Read some of the new events, and whether the run has failed or finished."""
        self.events.add(self._reader.new())
        if self._finished_at is None and (self.events.exit_code is not None or self.events.phase == REGROUPING):
            self._finished_at = now
        if self._failed_at is None and (self._recorded_failures.is_any(self.launcher_pid) or self._log.shows_failure()):
            self._failed_at = now

    def read_rest(self) -> None:
        """Read all events that there are."""
        self.events.read(self._reader)

    def _kill_overdue(self, now: float) -> None:
        """Stop a failed run within 30 s even if a rank hangs in a collective; torchrun alone takes longer."""
        if self._failed_at is not None and self._restarts.max_restarts and self._recorded_failures.would_repeat():
            self.killed_pids.update(self._tree.kill())  # torchrun included, before it restarts the ranks
            return
        deadline = self._grace.deadline(self._failed_at, self._finished_at, self._alone_since)
        if now < deadline:
            return
        if not self._restarts.is_last_attempt and self._finished_at is None:
            self.killed_pids.update(self._restarts.kill_ranks())  # torchrun will restart them
            return
        # torchrun is spared at first, because its report names the rank that failed first.
        spared = [self.launcher_pid] if now < deadline + self._grace.report_s else []
        self.killed_pids.update(self._tree.kill(spare=spared))

    def _do_housekeeping(self, now: float) -> None:
        """Checks that are needed rarely or take longer."""
        if self._failed_at is not None and not self._restarts.is_last_attempt and self._restarts.detect_restart():
            self._report_restart(self._restarts.restart_count, self._restarts.max_restarts)
            self._failed_at = None
        if self._failed_at is None and (failure := self._restarts.suspended_rank(self.launcher_pid, self._ranks.start)):
            record_failure(self._folder, failure, keep_existing=True)
        if not self._launcher and self._restarts.is_alone_and_suspended(self.launcher_pid):
            self._warn(
                f"The process of the run is stopped (state T): by Ctrl-Z, a debugger or `kill -STOP`. "
                f"`kill -CONT {self.launcher_pid}` lets it continue."
            )
        if self._finished_at is not None and self._alone_since is None and self._is_only_launcher_left():
            self._alone_since = now
        if self._failed_at is not None and self._restarts.is_last_attempt and self._is_rest_unkillable():
            self.killed_pids.update(self._tree.kill())  # torchrun would wait for them
        if self._guard.restore():
            self._warn(
                f"The run folder {self._folder.path} was deleted or moved during the run. It was recreated; "
                "earlier backups, events and samples are no longer in it."
            )

    def _is_only_launcher_left(self) -> bool:
        """Whether torchrun is the only process left on this machine."""
        is_torchrun = self._launcher == "torchrun"
        return is_torchrun and all(each.pid == self.launcher_pid for each in self._tree.processes())

    def _is_rest_unkillable(self) -> bool:
        """Whether the launcher waits only for processes that no signal reaches."""
        rest = [each.pid for each in self._tree.processes() if each.pid != self.launcher_pid]
        return bool(rest) and all(map(waits_for_a_disk, rest))


class RecordedFailures:
    """Those of the `watched` ranks."""

    def __init__(self, folder: RunFolder, watched: range, restarts: RestartTracker) -> None:
        self._folder, self._watched, self._restarts = folder, watched, restarts
        self._files = [str(folder.failure_file(rank)) for rank in watched]  # asked for ten times a second

    def is_any(self, launcher_pid: int) -> bool:
        """Whether a watched rank has recorded a failure of the current attempt."""
        recorded = [file for file in self._files if os.path.exists(file)]
        if not recorded or not self._restarts.max_restarts:
            return bool(recorded)
        # Other machines may record the loss of this machine's ranks when it has already restarted them.
        started = self._restarts.ranks_started_at(launcher_pid)
        return started is not None and any(_written_after(file, started) for file in recorded)

    def would_repeat(self) -> bool:
        """Whether a rank rejected its settings or data, as it would again after a restart."""
        failures = [each for each in read_failures(self._folder) if each.rank in self._watched]
        return any(is_fatal(exit_code_of(each.kind)) for each in failures)


def _written_after(file: str, seconds: float) -> bool:
    try:
        return os.stat(file).st_mtime > seconds
    except OSError:
        return False


@dataclass(frozen=True)
class GracePeriods:
    """In seconds."""

    failure_s: float = 8.0  # of the other ranks after a failure
    report_s: float = 15.0  # of torchrun after that, for its report, without which nobody knows the signal
    finish_s: float = 60.0  # of all processes after the `finished` event
    alone_s: float = 5.0  # of a torchrun whose ranks have all ended and which waits for other machines
    stop_s: float = math.inf  # of all processes after a request to stop: a run takes as long as its backup

    @classmethod
    def of_start(cls, environment: Mapping[str, str]) -> Self:
        """Those of a start: one that only measures may be in the middle of a large batch, and has nothing to keep."""
        return cls(stop_s=_NOTHING_TO_KEEP_S) if passed_on(environment) else cls()

    def deadline(self, failed_at: float | None, finished_at: float | None, alone_since: float | None) -> float:
        """The earliest end of those that have begun; infinite if none has."""
        begun = ((failed_at, self.failure_s), (finished_at, self.finish_s), (alone_since, self.alone_s))
        return min((at + grace_s for at, grace_s in begun if at is not None), default=math.inf)
