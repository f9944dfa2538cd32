"""Recreates a run folder deleted during the run; removes the folder of a run that never started."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, suppress

from modules.config import ConfigError, ResumeError
from modules.files import FileFault, read_bytes
from modules.run.exit_codes import BAD_CONFIG, NO_DATA
from modules.run.folder.event_summary import EventSummary
from modules.run.folder.pidfile import pidfile_held
from modules.run.folder.run_folder import RunFolder
from modules.run.folder.run_lock import supervisor_lock


class FolderGuard:
    """Recreates the folder of a live run if it is deleted or moved; for the process that supervises the run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._config = b""
        self.has_restored = False
        self._marks = ExitStack()  # of this process in the new folder
        with suppress(OSError, FileFault):
            self._config = read_bytes(folder.config_file)

    def restore(self) -> bool:
        """Recreate the folder and its config if it is gone; returns whether it was."""
        folder = self._folder
        if not self._config or folder.log_dir.is_dir():
            return False
        try:
            folder.make_directories()
            folder.config_file.write_bytes(self._config)
        except (OSError, ConfigError):
            return False  # the whole disk is gone, perhaps temporarily
        self.has_restored = True
        self._mark()
        return True

    def close(self) -> None:
        """The run has ended: take the marks back."""
        self._marks.close()

    def _mark(self) -> None:
        """As in the folder that is gone: a window finds the run and can stop it, and nobody starts it twice."""
        if not self._folder.machine:
            self._marks.enter_context(pidfile_held(self._folder))
        with suppress(ResumeError):
            self._marks.enter_context(supervisor_lock(self._folder))


def remove_unstarted_run(folder: RunFolder) -> None:
    """Remove the folder of an unnamed run rejected at startup, unless it holds more than logs already printed."""
    events = EventSummary.of_file(folder.events_file)
    own = {folder.config_file, folder.events_file, folder.join_keys_file, folder.report_file}
    kept = [
        path
        for path in folder.path.rglob("*")
        if path.is_file() and path not in own and not {folder.log_dir, folder.tensorboard_dir} & {*path.parents}
    ]
    if events.exit_code in (BAD_CONFIG, NO_DATA) and not events.has_started and not kept:
        shutil.rmtree(folder.path, ignore_errors=True)
