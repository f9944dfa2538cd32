"""Run folders that vanish while the run goes on are made anew; those of starts that came to nothing are removed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from modules.run.events import read_events
from modules.run.exit_codes import BAD_CONFIG, NO_DATA
from modules.run.run_folder import RunFolder


class FolderGuard:
    """Looks after the folder of a live run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._config = b""
        with suppress(OSError):
            self._config = folder.config_file.read_bytes()

    def restore(self) -> bool:
        """Make the folder again if it is gone, with its config; whether that was so."""
        folder = self._folder
        if not self._config or folder.log_dir.is_dir():
            return False
        try:
            for directory in (folder.commands_dir, folder.samples_dir, folder.backup_dir, folder.log_dir):
                directory.mkdir(parents=True, exist_ok=True)
            folder.config_file.write_bytes(self._config)
        except OSError:
            return False  # the whole disk is gone, perhaps only for now
        return True


def remove_if_refused(folder: RunFolder) -> None:
    """Remove a folder that nobody has named, where the start was refused and left nothing but what was said already."""
    events = read_events(folder.events_file)
    codes = [event.get("exit_code") for event in events if event["type"] == "finished"]
    own = {folder.config_file, folder.events_file}
    kept = [path for path in folder.path.rglob("*") if path.is_file() and path not in own and not _is_log(folder, path)]
    has_started = any(event["type"] == "started" for event in events)
    if codes and codes[-1] in (BAD_CONFIG, NO_DATA) and not has_started and not kept:
        shutil.rmtree(folder.path, ignore_errors=True)


def _is_log(folder: RunFolder, path: Path) -> bool:
    return path.is_relative_to(folder.log_dir)
