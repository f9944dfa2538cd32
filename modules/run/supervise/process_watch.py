"""Watches the processes of a run while it goes on, and kills those that outlive its failure or its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from modules.run.exit_codes import exit_code_of
from modules.run.folder.event_summary import EventSummary, follow_from_end
from modules.run.folder.failures import Failure, read_failures, record_failure
from modules.run.folder.folder_guard import FolderGuard
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.fatal_startup import is_fatal
from modules.run.supervise.child_process import launcher_name
from modules.run.supervise.grace_periods import GracePeriods
from modules.run.supervise.launcher_log import LauncherLogFile
from modules.run.supervise.process_tree import ProcessTree, waits_for_a_disk
from modules.run.supervise.restart_tracker import RestartTracker

_HOUSEKEEPING_EVERY_S = 2.0


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
        if self._finished_at is None and self.events.exit_code is not None:
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
        if self._failed_at is None and (failure := self._suspended_rank()):
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

    def _suspended_rank(self) -> Failure | None:
        return self._restarts.suspended_rank(self.launcher_pid, self._ranks.start)

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
