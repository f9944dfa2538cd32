"""What the processes and the folder of a run show, besides its events."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from modules.config import ConfigError
from modules.files import printable, read_tail
from modules.run import Failure, RunFolder, root_cause
from modules.run.folder.backup_list import complete_backups
from modules.run.folder.backup_manifest import BACKUP_NAME
from modules.run.folder.failures import read_start_failure
from modules.run.folder.pidfile import Launcher, find_launcher, interrupted_start
from modules.run.folder.run_lock import is_training
from modules.run.join.join_line import read_join_line
from modules.run.remote.kept_commands import waiting_command
from modules.run.remote.run_copy import Copy, read_copy
from modules.run.view.event_records import Message

_CONSOLE_TAIL_BYTES: Final = 4096


@dataclass(frozen=True)
class Liveness:
    """What a run's processes and folder show."""

    exists: bool = True
    fault: str = ""  # why the folder cannot be read, if that is known
    launcher: Launcher | None = None
    is_training: bool = False
    stop_wanted: bool = False
    failure: Message | None = None
    start_failure: Message | None = None  # why the last start by the window started no process
    console: str = ""  # tail of the launcher's output, of a run that has ended
    join_line: str = ""  # of a run that may be waiting for other machines
    interrupted_start: float = 0.0  # when the launcher started, if it was killed; else 0
    backup: int | None = None  # the step of the newest backup, of a run that has ended
    has_model: bool = False  # whether a run that has ended has saved one
    copy: Copy | None = None  # of a run on another machine
    waiting: str = ""  # the command that runs once that machine has been idle

    @property
    def is_alive(self) -> bool:
        """Whether any process of the run is known to exist."""
        return self.launcher is not None or self.is_training

    @property
    def started(self) -> float:
        """When the run was last started, in seconds since the epoch; 0 if unknown, as on another machine."""
        if self.copy is not None and self.copy.stage != "complete":
            return 0.0
        return self.launcher.marked_at if self.launcher is not None else self.interrupted_start


def read_liveness(folder: RunFolder) -> Liveness:
    """Check the processes of a run, and its folder for failures. Takes milliseconds; callable from any thread."""
    try:
        return _read(folder)
    except OSError as error:  # no permission, or a disk that has gone
        return Liveness(exists=False, fault=f"{error.filename or folder.path}: {error.strerror or error}.")


def _read(folder: RunFolder) -> Liveness:
    if not folder.path.is_dir():
        return Liveness(exists=False)
    copy = read_copy(folder)
    launcher, has_started = find_launcher(folder), is_training(folder)
    if launcher is not None or has_started:
        waits = launcher is not None and not has_started
        stop_wanted = (folder.commands_dir / "stop").exists()
        join_line = read_join_line(folder) if waits else ""
        return Liveness(
            launcher=launcher,
            is_training=has_started,
            stop_wanted=stop_wanted,
            join_line=join_line,
            interrupted_start=interrupted_start(folder),
            copy=copy,
        )
    cause, start_failure = root_cause(folder), read_start_failure(folder)
    return Liveness(
        failure=None if cause is None else replace(_message(cause), rank=cause.rank, host=cause.host),
        start_failure=None if start_failure is None else _message(start_failure),
        console=_console_tail(folder),
        interrupted_start=interrupted_start(folder),
        backup=_newest_backup(folder),
        has_model=folder.model_dir.is_dir(),
        copy=copy,
        waiting="" if copy is None or copy.is_underway else _waiting(copy),
    )


def _waiting(copy: Copy) -> str:
    with suppress(ConfigError):  # a damaged file: what writes it says so
        if (found := waiting_command(copy.machine)) is not None and found[0] == copy.id:
            return str(found[1])
    return ""


def _message(failure: Failure) -> Message:
    return Message(failure.time, "error", failure.message, failure.advice, failure=failure.kind)


def _newest_backup(folder: RunFolder) -> int | None:
    """The step of the newest backup, as its name says."""
    backups = complete_backups(folder.backup_dir)
    named = None if not backups else BACKUP_NAME.fullmatch(backups[-1].name)
    return None if named is None else int(named[0].removeprefix("step-"))


def _console_tail(folder: RunFolder) -> str:
    tail = read_tail(folder.console_file, _CONSOLE_TAIL_BYTES)
    return printable(tail.decode(errors="replace"), _CONSOLE_TAIL_BYTES, lines=True)
