"""Commands to a running training: a file in the run folder's commands/, named after the command."""

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from modules.files import FileFault, is_link, open_for_writing, open_regular, printable
from modules.run.folder.run_folder import RunFolder

# `stop`, and the actions that modules/training/actions lets be requested.
CUSTOM_SAMPLE = "custom_sample"  # its file says what to generate: modules/run/folder/custom_sample.py
REGROUP = "regroup"  # of machine 0: the run ends at its next backup, to go on with other machines
FORCE_STOP = "force_stop"  # of a copy alone: its run on another machine ends at once (modules/run/remote/far_side.py)
COMMAND_NAMES = ("stop", REGROUP, "backup", "save", "sample", CUSTOM_SAMPLE)

# The reason in a `stop` command that stands for a signal; any other text comes from the user.
STOP_INTERRUPTED = "interrupted"
STOP_TERMINATED = "terminated"
STOP_PAUSED = "paused"

_MAX_REASON_CHARS = 200
_MAX_CONTENT_BYTES = 128 << 10  # of a command whose file is more than a reason


class Commands:
    """Reads the pending commands of a run, those in `names`, polling the folder at most every `every_s` seconds."""

    def __init__(self, folder: RunFolder, names: Sequence[str] = COMMAND_NAMES, *, every_s: float = 0.2) -> None:
        self._directory = folder.commands_dir
        self._names = names
        self._every_s = every_s
        self._next_poll = 0.0
        self._pending: dict[str, str] = {}
        self._stuck: set[str] = set()

    def pending(self, *, at_once: bool = False) -> dict[str, str]:
        """The pending commands and their reasons (may be empty), or what else their files hold."""
        now = time.monotonic()
        if at_once or now >= self._next_poll:
            self._next_poll = now + self._every_s
            self._pending = self._read()
        return dict(self._pending)

    def done(self, name: str) -> None:
        """Remove a command once it has been carried out."""
        self._pending.pop(name, None)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError:
            # The file stays if the folder became read-only. Repeating the command every step would be worse than
            # ignoring a second request.
            self._stuck.add(name)

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            present = os.listdir(self._directory)
        except OSError:
            return found
        for name in self._names:
            if name not in present or name in self._stuck:
                continue
            has_content = name == CUSTOM_SAMPLE
            try:
                with open_regular(self._directory / name) as file:
                    read = file.read(_MAX_CONTENT_BYTES if has_content else 4 * _MAX_REASON_CHARS)
            except (OSError, FileFault):
                continue
            text = read.decode("utf-8", "replace").strip()
            found[name] = text if has_content else printable(text, _MAX_REASON_CHARS)
        return found


class SilentCommands:
    """Never has a pending command; for ranks other than 0."""

    def pending(self, *, at_once: bool = False) -> dict[str, str]:
        """Always empty."""
        return {}

    def done(self, name: str) -> None:
        """Nothing to remove."""


def request_command(folder: RunFolder, name: str, reason: str = "") -> None:
    """Send a command to a run; `reason` is what its file holds.

    Raises ValueError for an unknown name, OSError if the folder is a link or not writable.
    """
    if name not in (*COMMAND_NAMES, FORCE_STOP):
        known = ", ".join(each for each in COMMAND_NAMES if each != REGROUP)
        raise ValueError(f"command is {name!r}; use one of {known}")
    _check_no_link(folder.commands_dir)
    folder.commands_dir.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that the run never reads a partial reason.
    temporary = folder.commands_dir / f".{name}-{os.getpid()}"
    with os.fdopen(open_for_writing(temporary), "w", encoding="utf-8") as file:
        file.write(reason)
    temporary.replace(folder.commands_dir / name)


def withdraw_command(folder: RunFolder, name: str) -> None:
    """Take a command back that the run has not read. Raises OSError if the folder is a link or not writable."""
    _check_no_link(folder.commands_dir)
    (folder.commands_dir / name).unlink(missing_ok=True)


def stop_reason(folder: RunFolder) -> str | None:
    """The reason of a pending stop, which may be empty; None without one."""
    return Commands(folder, ("stop",)).pending().get("stop")


def is_stopped_by_user(folder: RunFolder) -> bool:
    """Whether a pending stop comes from a person, not from a signal."""
    return stop_reason(folder) not in {None, STOP_INTERRUPTED, STOP_TERMINATED, STOP_PAUSED}


def clear_commands(folder: RunFolder) -> None:
    """Delete commands left over from an earlier start. Raises OSError if the folder is a link or read-only."""
    for name in COMMAND_NAMES:
        withdraw_command(folder, name)


def _check_no_link(directory: Path) -> None:
    """Raise OSError if the folder leads to another one."""
    if is_link(directory):
        raise OSError(errno.ELOOP, "is a link to another folder", str(directory))
