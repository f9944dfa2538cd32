"""The command of a machine that runs on this computer once all results of a run there are here, such as to end the
rent: at once, or once nothing has gone on there for some minutes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from modules.config import ConfigError, TandemError
from modules.files import printable
from modules.run.folder.pidfile import find_launcher
from modules.run.folder.run_folder import RunFolder
from modules.run.folder.run_lock import file_lock
from modules.run.format_duration import in_words
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import read_hosts
from modules.run.hosts.ssh_command import HostError, Unreachable
from modules.run.queue.folder import RunQueue
from modules.run.remote.copy_folders import copies_of, folders_fault
from modules.run.remote.kept_commands import (
    KeptCommand,
    call_off,
    kept_command,
    let_wait,
    take_command,
    waiting_command,
    waiting_lock,
)
from modules.run.remote.link import Echo, LinkLost
from modules.run.remote.machine import activity_there, time_and_cost
from modules.run.remote.run_copy import read_copy

_TAKES_AT_MOST_S: Final = 600.0
_LOOKS_EVERY_S: Final = 60.0
_BY_HAND: Final = "All results are here; run it by hand, and look whether the machine is off"


def run_command_after(folder: RunFolder, host: Host, backups: str, echo: Echo) -> None:
    """Run the command of a copy, if it has one, once all is here after a pull of these `backups`; one time only. One
    with idle minutes waits from now on, for `run_when_idle`.

    Raises HostError if it was not run, because something is not here yet or goes on there, or has failed; ConfigError.
    """
    copy = read_copy(folder)
    kept = kept_command(copy.id) if copy is not None and copy.id else None
    if copy is None or kept is None:
        return
    name = f"The command after {folder.name}"
    if backups not in ("latest", "all"):
        raise HostError(f"{name} was not run: its newest backup was not asked for", "Pull again without --backups")
    if copy.is_underway:
        raise HostError(f"{name} was not run: not all of its results are here", "Follow it to its end, and pull")
    if kept.idle_minutes:
        let_wait(copy.id, 60 * kept.idle_minutes)
    elif held := _next_of_queue(folder.path.parent, host.name, but=folder.name):
        echo(f"{name} has not run yet: {held}, and it runs after that one.")
    elif held := _going_on(folder.path.parent, host, echo, own=folder):
        raise HostError(f"{name} was not run: {held}", "Pull this again once that is over")
    elif take_command(copy.id):  # whatever comes of it: it may have done its work and fail after that
        echo(f"All results of {folder.name} are here, verified. Running: {printable(kept.command, 200)}")
        call_off(host.name)  # of a run beside it: the machine has its end now
        _run(kept, name)


def run_when_idle(
    runs_dir: Path,
    machine: str,
    echo: Echo,
    *,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the command that waits for a machine, if there is one, once nothing has gone on there for its minutes, and
    return; also if it was called off, or another program waits with it. `runs_dir` is looked through for copies, too.

    Raises HostError if it has failed, or if the machine cannot be asked for a reason that does not pass; ConfigError.
    """
    if waiting_command(machine) is None:
        return
    with file_lock(waiting_lock(machine), 2 * _LOOKS_EVERY_S) as is_alone:  # one that was called off looks once more
        idle_since, begun, said, told_at, fault = clock(), "", "", None, ""
        while is_alone and (found := waiting_command(machine)) is not None:
            start_id, kept = found
            host = next((host for host in read_hosts() if host.name == machine), None)  # it may have another port now
            if host is None:
                echo(f"{machine} is not in the list of machines any more. {call_off(machine)}")
                return
            held = _going_on_or_unknown(runs_dir, host, start_id, echo)
            whole_s = 60 * kept.idle_minutes
            if held or start_id != begun:
                idle_since, begun = clock(), start_id
            elif kept.runs_at is not None and kept.runs_at != told_at:  # another program, such as pull, has begun anew
                idle_since = clock() - whole_s + min(whole_s, max(0.0, kept.runs_at - time.time()))
            left_s = whole_s - (clock() - idle_since)
            try:
                if not held and left_s <= 0:
                    if take_command(start_id):
                        idle = time_and_cost(round(whole_s), host)
                        echo(f"{machine} has been idle for {idle}. Running: {printable(kept.command, 200)}")
                        _run(kept, f"The command after the runs on {machine}")
                    return
                told_at = let_wait(start_id, left_s, held)
            except ConfigError as error:  # it passes, such as a full disk, and the machine is paid for meanwhile
                told_at = kept.runs_at
                if fault != (fault := error.message):
                    echo(f"{fault}. The wait goes on.")
            if said != (said := held or "idle"):
                minutes = in_words(whole_s)
                echo(f"Waiting until {machine} has been idle for {minutes}{f': {held}' if held else ''}.")
            pause(min(_LOOKS_EVERY_S, left_s) if left_s > 0 else _LOOKS_EVERY_S)


def _going_on_or_unknown(runs_dir: Path, host: Host, start_id: str, echo: Echo) -> str:
    """As `_going_on`; a machine that cannot be reached may be at work."""
    try:
        return _going_on(runs_dir, host, echo)
    except (Unreachable, LinkLost) as error:
        return printable(error.message, 500)
    except TandemError as error:
        with suppress(ConfigError):  # the other one is said
            let_wait(start_id, 0.0, printable(error.message, 500))
        raise


def _going_on(runs_dir: Path, host: Host, echo: Echo, own: RunFolder | None = None) -> str:
    """Why a machine is not to be ended now, as the end of a sentence; "" if it may be. A start that has failed before
    it came about holds nothing back. Raises ConfigError, HostError.

    This program is at work in its `own` copy, if any: it has just read there, and is not to wait for a connection of
    its own that was cut and has not noticed it there.
    """
    if fault := folders_fault() or _next_of_queue(runs_dir, host.name, but="" if own is None else own.name):
        return fault
    for folder in copies_of(host.name, runs_dirs=[runs_dir]):
        copy = read_copy(folder)
        if copy is not None and copy.lacks_results:
            return f"the results of {folder.path} are not all here"
        is_own = own is not None and own.path.resolve() == folder.path.resolve()
        if not is_own and find_launcher(folder) is not None:
            return f"a program is at work in {folder.path}"
    return activity_there(host, echo, also_reading=own is None)


def _next_of_queue(runs_dir: Path, machine: str, *, but: str = "") -> str:
    """Which entry of the queue that is at work on a runs folder is to run on a machine, as the end of a sentence; ""
    if none is. `but` is the name of a run that is not meant. Raises ConfigError."""
    queue = RunQueue(runs_dir)
    if not queue.has_runner():
        return ""
    wanted = (each for each in queue.entries_for(machine) if each.name != but)
    return next((f"entry {entry.title} of the queue is to run on {machine}" for entry in wanted), "")


def _run(kept: KeptCommand, name: str) -> None:
    try:
        done = subprocess.run(  # noqa: S602  # the user wrote it for their shell
            kept.command, shell=True, stdin=subprocess.DEVNULL, timeout=_TAKES_AT_MOST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{name} took more than {_TAKES_AT_MOST_S:.0f} s", _BY_HAND) from None
    except OSError as error:
        raise HostError(f"{name} could not start: {error.strerror}", _BY_HAND) from None
    if done.returncode != 0:
        raise HostError(f"{name} ended with exit code {done.returncode}", _BY_HAND)
