"""The run of an entry that trains on another machine, as its copy here and the attendant of the copy tell of it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psutil

from modules.config import ConfigError, ResumeError, TrainConfig
from modules.files import printable
from modules.run.endings import ENDINGS
from modules.run.exit_codes import FINISHED, INTERRUPTED
from modules.run.folder.commands import FORCE_STOP, request_command
from modules.run.folder.event_reader import head_and_tail
from modules.run.folder.event_summary import EventSummary
from modules.run.folder.pidfile import find_launcher
from modules.run.folder.run_folder import RunFolder, not_writable_error
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import find_hosts
from modules.run.hosts.ssh_command import Unreachable
from modules.run.queue.active_run import OF_A_STOP, Ended, cause_of_end, is_alive, prepared_folder
from modules.run.queue.entries import Entry, Resources
from modules.run.queue.folder import RunQueue
from modules.run.queue.own_copy import check_trains_there
from modules.run.queue.places import is_cluster
from modules.run.remote.attendant import ADD, check_job, launch_attendant, startable_uploads
from modules.run.remote.copy_folders import remember_copies_in
from modules.run.remote.far_side import COMMANDS
from modules.run.remote.parts import machines_with
from modules.run.remote.run_copy import Copy, mark_copy, read_copy
from modules.run.view.run_view import RunView

_MOST_LAUNCHES: Final = 3  # of attendants that somebody kills, one after the other
_ASKED_TO_END: Final = (-signal.SIGTERM, -signal.SIGINT)


class PlaceRun:
    """As `ActiveRun`; the attendant outlives a killed queue, as the run there outlives both."""

    def __init__(self, entry: Entry, folder: RunFolder, process: subprocess.Popen[bytes] | None = None) -> None:
        self.entry = entry
        self.folder = folder
        self._process = process  # of an attendant that this queue has launched
        self._stops = 0
        self._launches = 0
        self._had_finished = False  # before it was to be started
        self._is_left = False  # its attendant was ended, whatever the run there does

    @classmethod
    def start(cls, queue: RunQueue, entry: Entry, mark: Entry) -> PlaceRun:
        """Let an attendant send, start and follow an entry's run, resume it there if it has ended, or go on where an
        earlier attendant was left; `mark` is recorded first. One that has finished, and is here, ends at once.

        Raises TandemError: code that nobody has allowed, a name that is taken here, a machine that is not in the list
        any more. What else is wrong is found by the attendant.
        """
        machines_with(find_hosts([entry.place], ADD)[0], entry.hosts, ADD)
        copy = read_copy(folder := queue.run_folder(entry))
        if copy is None and entry.started is not None and folder.events_file.exists():
            raise ConfigError(f"{folder.path} is the folder of another run, not the copy of one on {entry.place}")
        if (copy is None or not copy.is_underway) and is_alive(folder):
            what = f"another program is at work in {folder.path}, such as one that trains in this copy of the run"
            raise ConfigError(what, "Wait until it ends, or stop it")
        folder = prepared_folder(queue, entry, mark, lambda config: check_trains_there(config, entry.hosts))
        if copy is not None and copy.has_finished:
            run = cls(mark, folder)
            run._had_finished = True  # resumed, it would replace its model there, and the pull refuse that
            return run
        for name in COMMANDS:  # of an earlier start
            (folder.commands_dir / name).unlink(missing_ok=True)
        remember_copies_in(queue.runs_dir)
        try:
            if copy is None or not copy.is_underway:
                for file in folder.log_dir.glob("*.error.json"):
                    file.unlink(missing_ok=True)
                new = Copy(machine=entry.place, stage="sending", attended=True, queued=True, resumes=copy is not None)
                mark_copy(folder, new.model_copy(update={"sends_token": entry.sends_token, "joined": entry.hosts}))
            return cls(mark, folder, None if find_launcher(folder) is not None else launch_attendant(folder))
        except OSError as error:
            raise not_writable_error(folder.path, error) from error

    @classmethod
    def taken_over(cls, entry: Entry, folder: RunFolder) -> PlaceRun | None:
        """What a queue that was killed, or this computer's restart, has left; None if nothing is left to do for it, or
        the queue must start it."""
        copy, found = read_copy(folder), cls(entry, folder)
        is_left = copy is not None and copy.is_underway and not copy.fault
        return found if find_launcher(folder) is not None or (is_left and found._launch()) else None

    @property
    def resources(self) -> Resources | None:
        """What it takes; None once it has ended there and its results are on their way, or a cluster has its job."""
        copy = read_copy(self.folder)
        if copy is None or copy.stage == "sending":
            return self.entry.resources
        return self.entry.resources if copy.stage == "running" and not is_cluster(self.entry.place) else None

    @property
    def is_preparing(self) -> bool:
        """Whether its data is on its way, or it may still be writing to the cache there, which all runs there share."""
        if self.resources is None:
            return False
        copy = read_copy(self.folder)
        is_sending = copy is None or copy.stage == "sending"
        return is_sending or not EventSummary(head_and_tail(self.folder.events_file)).has_started

    @property
    def is_alive(self) -> bool:
        """Whether an attendant is at work. One that was killed is launched again, and goes on where it was; one that
        somebody has asked to end, as Stop in the window does while data is on its way, is not."""
        if find_launcher(self.folder) is not None:
            return True
        copy, code = read_copy(self.folder), None if self._process is None else self._process.poll()
        if copy is None or not copy.is_underway or copy.fault or self._is_left or self._launches >= _MOST_LAUNCHES:
            return False
        if self._process is not None and code is None:
            return True  # it is just ending
        was_killed = code is not None and code < 0 and code not in _ASKED_TO_END
        if not was_killed and not (self._stops and copy.may_run):
            return False
        if self._stops and copy.may_run:
            with suppress(OSError):
                request_command(self.folder, "stop")
        return self._launch()

    def _launch(self) -> bool:
        """Whether there is an attendant again."""
        self._launches += 1
        with suppress(OSError, ResumeError):  # if it cannot be written, `ended` tells what is left to do
            self._process = launch_attendant(self.folder)
        return find_launcher(self.folder) is not None

    def stop(self, number: int, *, by_command: bool = False) -> None:
        """Ask the run there to stop after a backup, or end the transfer of its data; the second time, end it at once,
        or without a connection, and while results are on their way, only the attendant."""
        self._stops += 1
        copy = read_copy(self.folder)
        is_away = copy is not None and bool(copy.said)
        with suppress(OSError):
            if copy is not None and copy.may_run and self._stops == 1:
                request_command(self.folder, "stop")
            elif copy is not None and copy.may_run and self._stops == 2 and not is_away:
                request_command(self.folder, FORCE_STOP)
            elif copy is None or copy.stage == "sending" or self._stops > 1:
                self._is_left = self._stops > 1
                self._end_attendant()

    def _end_attendant(self) -> None:
        launcher = find_launcher(self.folder)
        if launcher is not None:
            with suppress(psutil.Error):
                launcher.process.terminate()

    def stop_once(self) -> None:
        """`stop`, unless it was asked before."""
        if not self._stops:
            self.stop(signal.SIGINT)

    def ask_again(self) -> None:
        """Nothing: the attendant repeats what was asked."""

    def ended(self) -> Ended:
        """How it ended, once it is not alive."""
        copy, place = read_copy(self.folder), self.entry.place
        if copy is None:
            return Ended(None, f"{self.folder.path} is gone, or not the copy of a run on {place} any more")
        if self._had_finished:
            return Ended(FINISHED, f"It had finished on {place} before, so nothing was trained")
        if copy.stage == "complete":
            return self._ended_there(copy)
        if copy.fault:
            return Ended(None, copy.fault)
        if self._launches >= _MOST_LAUNCHES:
            return Ended(None, f"What follows it here was killed {_MOST_LAUNCHES} times; more in its log/remote.txt")

        left = {
            "sending": f"It may have started on {place}" if copy.id else f"Its data was not all sent to {place}",
            "running": f"It goes on on {place}, and is not followed",
        }.get(copy.stage, f"Its results are still on {place}")
        return Ended(INTERRUPTED, left, was_stopped=bool(self._stops), is_left=True)

    def _ended_there(self, copy: Copy) -> Ended:
        events = EventSummary(head_and_tail(self.folder.events_file))
        if copy.code == FINISHED:
            ending = ENDINGS.get(events.reason)
            return Ended(FINISHED, ending.title if ending else "Finished")
        was_stopped = bool(self._stops) and (copy.code is None or copy.code in OF_A_STOP)
        cause = cause_of_end(self.folder, events, copy.code)
        if copy.code is None:
            cause = f"It was killed on {copy.machine}, or that machine was restarted"
        return Ended(copy.code, cause, was_stopped)


def check_startable(queue: RunQueue, config: TrainConfig, host: Host, others: Sequence[Host] = ()) -> str:
    """Ask a machine, and those that are to join it, whether the run of an entry could be started there as it is now;
    what to say if there is no connection. Raises TandemError if it could not be."""
    check_job(config, host, ())
    if not host.slurm:
        check_trains_there(config, [each.name for each in others])
    try:
        startable_uploads(config, host, queue.name_for(config), lambda line: None, others)
    except Unreachable as error:
        return f"{error.message}. The entry waits until there is a connection."
    return ""


def progress_of(entry: Entry, folder: RunFolder) -> str:
    """What the run of a running entry does: "step 20, loss 0.1234", or "sending to beta", "on beta: step 20, ..."."""
    view, copy = RunView(), read_copy(folder) if entry.place else None
    view.apply(head_and_tail(folder.events_file))
    loss = "" if view.last_loss is None else f", loss {view.last_loss:.4g}"
    step = "" if view.position is None else f"step {view.position:,}{loss}"
    if copy is None:
        return step
    share = "" if copy.done is None else f" ({100 * copy.done:.0f} %)"
    said = f": {printable(copy.said, 200)}" if copy.said else ""
    if copy.stage == "sending":
        return f"sending to {copy.machine}{share}{said}"
    if copy.stage == "running":
        return f"no connection to {copy.machine}{said}" if said else f"on {copy.machine}: {step or 'starting'}"
    return f"getting results from {copy.machine}{share}{said}"
