"""after_runs.json in the user's config folder: commands that run on this computer once all results of a run are here.

A copy of a run may be a stranger's folder, so it never names a command: the random id of a start there leads to it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.config import ConfigError
from modules.files import FileFault, Record, printable, validate_record
from modules.files.private import NotPrivate, read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.host import LONGEST_COMMAND, Host
from modules.run.hosts.ssh_command import HostError
from modules.run.remote.copy_folders import copies_of
from modules.run.remote.link import Echo
from modules.run.remote.machine import runs_there
from modules.run.remote.run_copy import read_copy

_MOST: Final = 100
_TAKES_AT_MOST_S: Final = 600.0
_BY_HAND: Final = "All results are here; run it by hand, and look whether the machine is off"

_Command = Annotated[str, Field(max_length=LONGEST_COMMAND)]


class _Commands(Record):
    commands: Annotated[dict[str, _Command], Field(max_length=_MOST)]


def keep_command(start_id: str, command: str) -> None:
    """Run this once all results of the start are here; "" for nothing. Raises ConfigError."""
    others = {each: kept for each, kept in _kept().items() if each != start_id}
    newest = list(others.items())[1 - _MOST :]
    try:
        write_private_json(_file(), {"commands": dict(newest) | ({start_id: command} if command else {})})
    except OSError as error:
        raise ConfigError(f"{printable(_file())} cannot be written: {error.strerror or error}") from error


def run_command_after(folder: RunFolder, host: Host, backups: str, echo: Echo) -> None:
    """Run the command of a copy, if it has one, once all is here after a pull of these `backups`; one time only.

    Raises HostError if it was not run, because something is not here yet or a run is active there, or has failed;
    ConfigError.
    """
    copy = read_copy(folder)
    command = _kept().get(copy.id, "") if copy is not None and copy.id else ""
    if copy is None or not command:
        return
    later = f"The command after {folder.name} was not run"
    if backups not in ("latest", "all"):
        raise HostError(f"{later}: its newest backup was not asked for", "Pull again without --backups")
    if copy.is_underway:
        raise HostError(f"{later}: not all of its results are here", "Follow it to its end, and pull")
    if waiting := copies_of(host.name, complete=False, runs_dirs=[folder.path.parent]):
        raise HostError(
            f"{later}: the results of {waiting[0].path} are not all here", "Pull them, then pull this again"
        )
    if active := [run.name for run in runs_there(host, echo).runs if run.is_active]:
        raise HostError(f"{later}: the run {active[0]} is active on {host.name}", "Pull this again once it has ended")
    keep_command(copy.id, "")  # whatever comes of it: it may have done its work and fail after that
    echo(f"All results of {folder.name} are here, verified. Running: {printable(command, 200)}")
    try:
        done = subprocess.run(  # noqa: S602  # the user wrote it for their shell
            command, shell=True, stdin=subprocess.DEVNULL, timeout=_TAKES_AT_MOST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise HostError(_failed(folder, f"took more than {_TAKES_AT_MOST_S:.0f} s"), _BY_HAND) from None
    except OSError as error:
        raise HostError(_failed(folder, f"could not start: {error.strerror}"), _BY_HAND) from None
    if done.returncode != 0:
        raise HostError(_failed(folder, f"ended with exit code {done.returncode}"), _BY_HAND)


def _failed(folder: RunFolder, how: str) -> str:
    return f"The command after {folder.name} {how}"


def _file() -> Path:
    return user_config_folder() / "after_runs.json"


def _kept() -> dict[str, str]:
    """Raises ConfigError if the file is damaged, or others could have written it."""
    try:
        return validate_record(_Commands, read_private_json(_file())).commands
    except FileNotFoundError:
        return {}
    except NotPrivate as fault:
        raise ConfigError(f"the commands after runs: {fault}") from None
    except (FileFault, OSError) as fault:
        raise ConfigError(f"the commands after runs cannot be read: {printable(_file())} {fault}") from None
