"""Renaming a run and moving it to the trash; a run that is active is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from modules.config import ConfigError, ResumeError
from modules.config.io.files import WRITERS, write_config_text
from modules.config.run_names import ALLOWED, sanitize_run_name
from modules.files import FileFault, printable, read_json
from modules.files.trash import Trashed, move_to_trash
from modules.run.folder.pidfile import find_launcher
from modules.run.folder.run_folder import CONFIG_FILE_NAME, RunFolder
from modules.run.folder.run_lock import check_not_training, supervisor_lock
from modules.run.queue.folder import RunQueue


def check_new_name(folder: RunFolder, name: str) -> None:
    """Raise ConfigError if the run cannot have this name."""
    if name != sanitize_run_name(name):
        raise ConfigError(
            f"The name {printable(name, 60)!r} cannot be used: a run name may contain only {ALLOWED}.",
            f"Try {sanitize_run_name(name)}.",
        )
    if name != folder.name and os.path.lexists(folder.path.parent / name):
        raise ConfigError(f"{folder.path.parent} already has something named {name}.", "Choose another name.")


def rename_run(folder: RunFolder, name: str) -> RunFolder:
    """Give a run another name: its folder, and the name in its configs. Returns the folder with its new name.

    Raises ConfigError for a name that is invalid or taken, and for a run that is active; OSError.
    """
    check_new_name(folder, name)
    renamed = RunFolder(folder.path.parent / name)
    if name == folder.name:
        return folder
    with _idle(folder, "renamed"):
        configs = _renamed_configs(folder, name)
        os.rename(folder.path, renamed.path)
        try:
            for file_name, text in configs.items():
                write_config_text(renamed.path / file_name, text)
        except ConfigError:  # a full disk
            os.rename(renamed.path, folder.path)
            raise
    with suppress(ConfigError, OSError):  # a queue that cannot be read says so on its own page
        RunQueue(folder.path.parent).rename(folder.name, name)
    return renamed


def trash_run(folder: RunFolder) -> Trashed:
    """Move a run to the trash. Raises ConfigError for a run that is active; OSError."""
    with _idle(folder, "deleted"):
        return move_to_trash(folder.path)


@contextmanager
def _idle(folder: RunFolder, done: str) -> Iterator[None]:
    """Inside, nobody starts or continues the run. Raises ConfigError while it is active."""
    refusal = ConfigError(f"The run {folder.name} is active; it can be {done} once it has ended.", "Stop it first.")
    if find_launcher(folder) is not None:
        raise refusal
    with ExitStack() as held:
        try:
            held.enter_context(supervisor_lock(folder))
            check_not_training(folder)
        except ResumeError:
            raise refusal from None
        if sys.platform == "win32":
            held.close()  # Windows renames no folder with an open file
        yield


def _renamed_configs(folder: RunFolder, name: str) -> dict[str, str]:
    """The configs in the folder, of this machine and of joined ones, that name the run: their text with its new name.

    One that cannot be read stays as it is.
    """
    found = {}
    for file in [folder.path / CONFIG_FILE_NAME, *folder.path.glob("machine-*.json")]:
        try:
            data = read_json(file, only_finite=False)
        except (OSError, FileFault):
            continue
        if isinstance(data, dict) and data.get("run_name") == folder.name:
            found[file.name] = WRITERS[".json"]({**data, "run_name": name})
    return found
