"""The failures that ranks have recorded in the run folder, as a supervisor sees them while the run is going on."""

from __future__ import annotations

import os

from modules.run.exit_codes import exit_code_of
from modules.run.folder.failures import read_failures
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.fatal_startup import is_fatal
from modules.run.supervise.restart_tracker import RestartTracker


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
