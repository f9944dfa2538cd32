"""Starts, stops and finds runs. Each is a separate process that outlives the window."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from app.runs.join_prompt import JoinPrompt, join_prompt_of
from app.runs.liveness import Liveness, read_liveness
from app.runs.status import READING, STARTING, Status, status_of
from modules.config import Sample, TrainConfig
from modules.run import EventReader, RunFolder, request_command
from modules.run.folder.commands import FORCE_STOP
from modules.run.folder.run_folder import has_trained, newest_first
from modules.run.launch.detached import create_run, launch, next_free_name
from modules.run.remote.run_copy import Copy, read_copy
from modules.run.supervise.force_stop import force_stop, request_graceful_stop
from modules.run.view.run_view import RunView

__all__ = ["RunControl", "active_runs", "create_run", "existing_run", "launch", "next_free_name"]

_ENDED_BY: Final = {"save": "saving", "sample": "sampling", "backup": "backup"}  # keys of `ended` of the view
_PASSED_OVER_AFTER: Final = 24  # steps: a request reaches all ranks within eight, and figures come as late
POLL_EVERY_S: Final = 0.2
_LIVENESS_EVERY_S: Final = 1.0
# About 75 events, parsed in less than a millisecond; then the thread yields to the window.
_SLICE_BYTES: Final = 16 << 10
_YIELD_S: Final = 0.001


def existing_run(config: TrainConfig) -> RunFolder | None:
    """The run with the config's run_name that has something to lose; None if it never trained, or there is none."""
    if config.run_name is None:
        return None
    folder = RunFolder((Path(config.runs_dir) / config.run_name).absolute())
    is_there = os.path.exists(folder.events_file) and os.path.exists(folder.config_file)
    return folder if is_there and has_trained(folder) else None


def active_runs(runs_dir: Path) -> list[Path]:
    """The folders of runs that are active on this computer, newest first."""
    found = newest_first(runs_dir, lambda run: run.path.stat().st_mtime if read_liveness(run).is_alive else None)
    return [run.path.absolute() for run in found]


class RunControl:
    """The run that the window follows: its status, and requests to it. Main thread only."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = RunFolder(path)
        self._process = process
        self._pid = None if process is None else process.pid
        self._exit_code: int | None = None  # of that process; None also once another one has started the run again
        self._launcher: psutil.Process | None = None
        self._stop_wanted = False
        self.awaited_sample: Sample | None = None  # a custom one that was asked for and has not come
        self._requested: dict[str, float] = {}  # requested commands, and when
        self._taken_at: dict[str, int] = {}  # the step at which the run has picked them up
        self._stopping: threading.Thread | None = None
        self._follower = Follower(path)
        self.view = self._follower.view
        self._follower.start()

    @property
    def is_caught_up(self) -> bool:
        """Whether all events written so far have been read."""
        return self._follower.is_caught_up.is_set()

    def status(self) -> Status:
        """The current status."""
        liveness = self._follower.liveness
        if liveness.launcher is not None:
            self._launcher = liveness.launcher.process
            if self._launcher.pid != self._pid:
                self._exit_code = None
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process, self._exit_code = None, code  # its PID may be reused
            self._follower.poll_now()
        if not liveness.exists:
            return replace(status_of(self.view, liveness, time.time()), is_alive=self._is_launcher_alive())
        if self._process is not None and not liveness.is_alive:
            return STARTING
        if not liveness.is_alive and not self.is_caught_up:
            return READING
        if not liveness.is_alive:
            self._stop_wanted = False
            self._requested.clear()
        return status_of(self.view, liveness, time.time(), self._stop_wanted, self._exit_code)

    @property
    def join_prompt(self) -> JoinPrompt | None:
        """How other machines join; None unless the run waits for them."""
        liveness = self._follower.liveness
        return join_prompt_of(self.view, liveness.join_line, liveness.started)

    @property
    def has_started(self) -> bool:
        """Whether training has started, so that requests are answered."""
        with self.view.lock:
            run_info = self.view.run_info
        return run_info is not None and run_info.time >= self._follower.liveness.started

    @property
    def shows_earlier_start(self) -> bool:
        """Whether the run has been started again, and all that the view knows is of the time before."""
        with self.view.lock:
            return self._follower.liveness.started > self.view.time

    @property
    def copy(self) -> Copy | None:
        """What is known of the run on another machine that this is the copy of; None for others."""
        return self._follower.liveness.copy

    @property
    def has_samples(self) -> bool:
        """Whether the run has sample prompts."""
        with self.view.lock:
            run_info = self.view.run_info
        return run_info is None or bool(run_info.config.get("samples"))

    @property
    def is_alive(self) -> bool:
        """Whether the run is active."""
        return self.status().is_alive

    def request(self, name: str, content: str = "") -> str:
        """Request a backup, samples or a saved model; return an error message or "".

        `content` is what the command's file holds.
        """
        try:
            request_command(self.folder, name, content)
        except OSError as error:
            return f"The {name} request could not be written: {error.strerror or error}."
        self._requested[name] = time.time()
        self._taken_at.pop(name, None)
        return ""

    def is_pending(self, name: str) -> bool:
        """Whether the run has not yet done what was requested."""
        if name in self._requested and not os.path.lexists(self.folder.commands_dir / name) and self._is_done(name):
            del self._requested[name]
        return name in self._requested

    def _is_done(self, name: str) -> bool:
        """Whether a request that the run has picked up has come to its end, or was passed over in the steps since."""
        with self.view.lock:
            ended, step = self.view.ended.get(_ENDED_BY.get(name, ""), 0.0), self.view.position or 0
        taken_at = self._taken_at.setdefault(name, step)
        return name not in _ENDED_BY or ended >= self._requested[name] or step > taken_at + _PASSED_OVER_AFTER

    def stop(self, *, is_closing: bool = False) -> str:
        """Request a stop after a backup; return an error message or "".

        `is_closing`: the window cannot repeat the request, so a run that has not started training also gets a signal.
        """
        copy = read_copy(self.folder)
        if self._launcher is not None and copy is not None and copy.is_underway and not copy.may_run:
            self.leave()  # what it does goes on later where it was
            return ""
        self._stop_wanted = True
        try:
            request_command(self.folder, "stop")
            if is_closing and not self.has_started and copy is None:
                request_graceful_stop(self._launcher)
        except OSError as error:
            if not request_graceful_stop(self._launcher):
                self._stop_wanted = False
                return f"The stop request could not be written: {error.strerror or error}."
        self._follower.poll_now()
        return ""

    def resend_stop(self) -> None:
        """Repeat a stop request that the run's start has deleted along with older commands."""
        if self._stop_wanted and not os.path.lexists(self.folder.commands_dir / "stop"):
            with self.view.lock:
                is_over = self.view.finished is not None
            if not is_over:
                self.stop()

    @property
    def is_stop_asked(self) -> bool:
        """Whether a stop was asked for and is not yet known to the run."""
        return (self.folder.commands_dir / "stop").exists() or (self.folder.commands_dir / FORCE_STOP).exists()

    def leave(self) -> None:
        """End the program that brings news of a run on another machine, where it goes on; Continue follows again."""
        if self._launcher is not None:
            with suppress(psutil.Error):
                self._launcher.terminate()
        self._follower.poll_now()

    def force_stop(self) -> None:
        """Kill all processes of the run without a backup, in a thread because it may take seconds."""
        if self.copy is not None and self.copy.may_run and self.is_alive:
            request_command(self.folder, FORCE_STOP)
            return
        if self._stopping is None or not self._stopping.is_alive():
            self._stopping = threading.Thread(target=self._end, name="end at once", daemon=True)
            self._stopping.start()

    def detach(self) -> None:
        """Stop following; the run continues."""
        self._follower.stop()

    def _is_launcher_alive(self) -> bool:
        """Whether the launcher still runs after its PID file was deleted with the folder."""
        if self._launcher is None:
            return False
        try:
            return self._launcher.is_running() and self._launcher.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _end(self) -> None:
        force_stop(self.folder, self._launcher)
        self._follower.poll_now()


class Follower:
    """Keeps a RunView and the run's liveness up to date until `stop`."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.view = RunView()
        self.liveness = Liveness()
        self.is_caught_up = threading.Event()
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow {path.name}", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._ending.set()
        self._wake.set()

    def poll_now(self) -> None:
        """Poll now instead of after the interval."""
        self._wake.set()

    def _follow(self) -> None:
        reader = EventReader(self.folder.events_file, chunk_bytes=_SLICE_BYTES)
        restarts, next_life = 0, 0.0
        while not self._ending.is_set():
            events = reader.new()
            if reader.restarts != restarts:
                restarts = reader.restarts
                self.view.restart()
            if events:
                self.view.apply(events)
            now = time.monotonic()
            if now >= next_life or self._wake.is_set():
                self._wake.clear()
                next_life = now + _LIVENESS_EVERY_S
                self._set_liveness(read_liveness(self.folder))
            if events:
                time.sleep(_YIELD_S)
            else:
                self.is_caught_up.set()
                self._wake.wait(POLL_EVERY_S)

    def _set_liveness(self, liveness: Liveness) -> None:
        if liveness != self.liveness:
            self.liveness = liveness
            with self.view.lock:
                self.view.version += 1
