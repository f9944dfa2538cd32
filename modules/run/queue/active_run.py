"""The run of one entry: starting or continuing it, asking it to stop, and how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from modules import ROOT
from modules.config import ConfigError, TrainConfig, load_config, save_config
from modules.config.trusted_code import allow_code
from modules.machine import visible_gpus
from modules.run.endings import ENDINGS
from modules.run.exit_codes import FINISHED, INTERRUPTED, PAUSED, TERMINATED
from modules.run.folder.commands import STOP_TERMINATED, request_command
from modules.run.folder.event_reader import EventReader, event_time
from modules.run.folder.event_summary import EventSummary
from modules.run.folder.failures import read_start_failure, root_cause
from modules.run.folder.pidfile import find_launcher
from modules.run.folder.run_folder import RunFolder, check_run_name_free, not_writable_error
from modules.run.folder.run_lock import is_training
from modules.run.hosts.host_list import find_hosts
from modules.run.hosts.remote_machines import hosts_of_former_run
from modules.run.launch.detached import check_config, launch
from modules.run.launch.environment import restricted_to
from modules.run.launch.placement import gpus_needed
from modules.run.queue.entries import Entry, Queue, Resources, State
from modules.run.queue.folder import RunQueue
from modules.run.remote.run_copy import read_copy

_CHUNK_BYTES = 64 << 10
OF_A_STOP = (INTERRUPTED, PAUSED, TERMINATED)


@dataclass(frozen=True)
class Ended:
    """How a run ended; `was_stopped`: it was asked to by the queue, so it waits again. `is_left`: one on another
    machine is not followed any more, or was not sent, and `reason` tells which."""

    exit_code: int | None
    reason: str
    was_stopped: bool = False
    is_left: bool = False

    @property
    def state(self) -> State:
        """That of its entry, unless it waits again."""
        if self.exit_code == FINISHED:
            return "finished"
        return "stopped" if self.exit_code in OF_A_STOP else "failed"


class EntryChanged(ConfigError):
    """Somebody has removed an entry, or given it other GPUs, while it was about to start."""


class ActiveRun:
    """A run that the queue has started, or one that it has found running: a run outlives a killed queue."""

    def __init__(self, entry: Entry, folder: RunFolder, process: subprocess.Popen[bytes] | None = None) -> None:
        self.entry = entry
        self.folder = folder
        self._process = process
        self._stops = 0
        self._events = EventReader(folder.events_file, chunk_bytes=_CHUNK_BYTES)
        self._is_prepared = False

    @classmethod
    def start(cls, queue: RunQueue, entry: Entry, mark: Entry) -> ActiveRun:
        """Start an entry's run, or continue it if it has started before; `mark` is recorded first.

        Raises TandemError: a config that this computer cannot run, code that nobody has allowed, a name that is taken,
        a machine that is not in the list any more, a GPU that is gone; EntryChanged.
        """
        variables = {} if mark.given is None else _variables(mark.given)
        folder = prepared_folder(queue, entry, mark, check_config)
        resume, place = folder.events_file.exists(), ROOT if entry.hosts else None
        return cls(mark, folder, launch(folder, resume=resume, hosts=entry.hosts, cwd=place, variables=variables))

    @property
    def resources(self) -> Resources | None:
        """What it takes."""
        return self.entry.resources

    @property
    def is_preparing(self) -> bool:
        """Whether it may still be writing to its cache_dir, which another run that does so, too, would not survive."""
        while not self._is_prepared and (events := self._events.new()):
            since = self.entry.started or 0.0
            self._is_prepared = any(event["type"] == "started" and event_time(event) >= since for event in events)
        return not self._is_prepared

    @property
    def is_alive(self) -> bool:
        """Whether it still trains; a run whose launcher was killed goes on."""
        if self._process is not None and self._process.poll() is None:
            return True
        return is_alive(self.folder)

    def stop(self, number: int, *, by_command: bool = False) -> None:
        """Ask the run to stop after a backup, as by this signal; the second time, at once.

        `by_command`: a person asked for it, so that the run says that it was stopped; the signal is for one whose start
        deletes the command.
        """
        self._stops += 1
        if by_command:
            with suppress(OSError):
                request_command(self.folder, "stop")
        process: subprocess.Popen[bytes] | psutil.Process | None = self._process
        if self._process is None or self._process.poll() is not None:
            launcher = find_launcher(self.folder)
            process = None if launcher is None else launcher.process
        if process is not None and sys.platform != "win32":
            with suppress(psutil.Error, OSError):
                process.send_signal(number)
                return
        self.repeat_stop()

    def repeat_stop(self) -> None:
        """The command for a run that no signal reaches; its start may have deleted an earlier one."""
        with suppress(OSError):
            if self._stops and not (self.folder.commands_dir / "stop").exists():
                request_command(self.folder, "stop", STOP_TERMINATED)

    def stop_once(self) -> None:
        """`stop` as by Ctrl-C, unless it was asked before."""
        if not self._stops:
            self.stop(signal.SIGINT)

    def ask_again(self) -> None:
        """Repeat a stop that can only be a command."""
        if sys.platform == "win32" or self._process is None:
            self.repeat_stop()

    def ended(self) -> Ended:
        """How it ended, once it is not alive."""
        events = EventSummary.of_file(self.folder.events_file)
        has_finished = events.finished_at is not None and events.finished_at >= (self.entry.started or 0.0)
        code = None if self._process is None else self._process.poll()
        if has_finished and (code is None or code < 0):  # of a launcher that was killed meanwhile
            code = events.exit_code
        if has_finished and code == FINISHED:
            ending = ENDINGS.get(events.reason)
            return Ended(code, ending.title if ending else "Finished")
        cause = cause_of_end(self.folder, events if has_finished else EventSummary(), code)
        code = None if code == FINISHED else code  # the events were lost, so nobody knows whether there is a model
        was_stopped = bool(self._stops) and (code is None or code < 0 or code in OF_A_STOP)
        return Ended(code, cause, was_stopped)


def prepared_folder(queue: RunQueue, entry: Entry, mark: Entry, check: Callable[[TrainConfig], object]) -> RunFolder:
    """The folder of an entry's run, with the entry's config, which a `check` may refuse before the first start; `mark`
    is recorded before it is made. Raises TandemError, and EntryChanged."""
    config = queue.load(entry)
    allow_code(config, trust=False, ask=None)
    find_hosts(entry.hosts)
    folder = queue.run_folder(entry)
    if entry.started is None:
        check_run_name_free(queue.runs_dir, entry.name)
        check(config)

    def marked(found: Queue) -> Queue:
        now = next((each for each in found.entries if each.number == entry.number), None)
        if now is None or any(getattr(now, name) != getattr(entry, name) for name in ("state", "devices", "gpus")):
            raise EntryChanged(f"entry {entry.title} has been changed meanwhile")
        return found.with_entry(mark)

    queue.edit(marked)  # before the folder exists, so that a queue that is killed now knows the folder as its own
    if folder.path.is_dir():
        try:
            folder.make_directories()
        except OSError as error:
            raise not_writable_error(folder.path, error) from error
        save_config(config, folder.config_file)
    else:
        RunFolder.create(config)
    return folder


def is_alive(folder: RunFolder) -> bool:
    """Whether a run trains, or is about to."""
    return find_launcher(folder) is not None or is_training(folder)


def resources_in_use(runs_dir: Path, own: set[str]) -> dict[str, Resources]:
    """The runs of a folder that are active but are none of the queue's `own`, with what they take."""
    found: dict[str, Resources] = {}
    with suppress(OSError):
        for path in runs_dir.iterdir():
            folder = RunFolder(path)
            if path.name not in own and os.path.isdir(folder.log_dir) and is_alive(folder):
                found[folder.name] = _resources(folder)
    return found


def _resources(folder: RunFolder) -> Resources:
    copy = read_copy(folder)
    there = copy if copy is not None and copy.is_underway else None
    place, joined = ("", None) if there is None else (there.machine, there.joined)
    try:
        config = load_config(folder.config_file)
        chosen = None if config.device_ids is None else list(config.device_ids)
        devices = chosen if chosen or place else _first_gpus(folder, gpus_needed(config))
    except (ConfigError, OSError):
        return Resources(None, tuple(joined or ()), place)
    if joined is None:
        joined = hosts_of_former_run(folder) if config.num_nodes != 1 else []
    return Resources(devices, tuple(joined), place)


def _first_gpus(folder: RunFolder, count: int | None) -> list[int] | None:
    """The GPUs of a run without device_ids: so many of those that its own environment shows it; None for all."""
    launcher = find_launcher(folder)
    with suppress(psutil.Error):
        if launcher is not None:
            return [gpu.index for gpu in visible_gpus(launcher.process.environ())][:count] or None
    return None


def _variables(indices: Sequence[int]) -> dict[str, str]:
    """Those with which a run sees only these GPUs. Raises ConfigError if one of them has gone."""
    visible = visible_gpus()
    gpus = [gpu for gpu in visible if gpu.index in indices]
    if missing := set(indices).difference(gpu.index for gpu in gpus):
        gone = f"GPU {min(missing)}, which the queue has chosen, cannot be used any more"
        raise ConfigError(gone, "See nvidia-smi, and let the entry wait again: it gets another one")
    return restricted_to(gpus, visible, os.environ)


def cause_of_end(folder: RunFolder, events: EventSummary, code: int | None) -> str:
    """Why a run did not finish, in a line."""
    failure = read_start_failure(folder) or root_cause(folder)
    if failure is not None:
        return failure.message
    if events.finished_at is not None:
        if events.error is not None and events.reason == "failed":
            return events.error.message
        if ending := ENDINGS.get(events.reason):
            return f"{ending.title}: {ending.detail}" if ending.detail else ending.title
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"The process was ended by {signal.Signals(-code).name}"
    if code == FINISHED:
        return f"It ended without saying how; more in {folder.launcher_log}"
    return "The process was killed, or the computer went down" if code is None else f"It ended with exit code {code}"
