"""Starts, stops and finds runs. Each is a separate process that outlives the window."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from app.runs.follower import Follower
from app.runs.join_prompt import JoinPrompt, join_prompt_of
from app.runs.status import READING, STARTING, Status, read_liveness, status_of
from modules import ROOT
from modules.config import ConfigError, TrainConfig, load_config
from modules.files import open_for_writing
from modules.run import LaunchPlan, RunFolder, request_command
from modules.run.folder.pidfile import write_pidfile
from modules.run.folder.run_folder import not_writable_error
from modules.run.join.join_token import JOIN_TOKEN
from modules.run.supervise.force_stop import force_stop, request_graceful_stop

TRAIN_SCRIPT: Final = ROOT / "scripts" / "train.py"
# Set by torchrun for its ranks; if inherited from the window's environment, train.py would run as a rank.
_RANK_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TANDEM_START")


def create_run(config: TrainConfig) -> RunFolder:
    """Check that this computer can run the config, and create the run folder. Raises TandemError."""
    if config.num_nodes > 1 and config.node_rank > 0:
        raise ConfigError(
            f"This machine is number {config.node_rank} of {config.num_nodes}; a multi-machine run is started "
            "on machine 0. Set its number (node_rank) to 0 here, or paste machine 0's join line into a "
            "terminal."
        )
    LaunchPlan.from_config(config, config_path="config.json")
    return RunFolder(RunFolder.create(config).path.resolve())


def existing_run(config: TrainConfig) -> RunFolder | None:
    """The existing run with the config's run_name, or None."""
    if config.run_name is None:
        return None
    folder = RunFolder((Path(config.runs_dir) / config.run_name).resolve())
    return folder if folder.events_file.exists() and folder.config_file.exists() else None


def next_free_name(folder: RunFolder) -> str:
    """The next free name: "cats" becomes "cats-2"."""
    stem, _, end = folder.name.rpartition("-")
    if not (stem and end.isdecimal()):
        stem, end = folder.name, "1"
    names = (f"{stem}-{number}" for number in itertools.count(int(end) + 1))
    return next(name for name in names if not (folder.path.parent / name).exists())


def launch(folder: RunFolder, *, resume: bool = False, token: str = "") -> subprocess.Popen[bytes]:
    """Start training in an existing run folder, detached from the window. Raises ConfigError (full disk, a link in it).

    `token` is the secret with which other machines join; without it a multi-machine run generates one.
    """
    argv = [sys.executable, str(TRAIN_SCRIPT), "--config", str(folder.config_file), "--start_in", str(folder.path)]
    argv += ["--resume", "latest"] if resume else []
    detached = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)) | int(getattr(subprocess, "DETACHED_PROCESS", 0))
    try:
        folder.make_directories()
        (folder.commands_dir / "stop").unlink(missing_ok=True)
        folder.start_failure_file.unlink(missing_ok=True)
        with os.fdopen(open_for_writing(folder.console_file), "wb") as console:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=_environment(token if token and load_config(folder.config_file).num_nodes > 1 else ""),
                start_new_session=sys.platform != "win32",
                creationflags=detached,
            )
    except OSError as error:
        raise not_writable_error(folder.path, error) from error
    write_pidfile(folder, process.pid)
    # Reaps the process even if the window follows another run by then.
    threading.Thread(target=process.wait, name=f"end of {folder.name}", daemon=True).start()
    return process


def _environment(token: str) -> dict[str, str]:
    """The variables of a start: the token is passed here, because every user can read a command line."""
    kept = {name: value for name, value in os.environ.items() if name not in (*_RANK_VARIABLES, JOIN_TOKEN)}
    return {**kept, JOIN_TOKEN: token} if token else kept


def active_runs(runs_dir: Path) -> list[Path]:
    """The folders of runs that are active on this computer, newest first."""
    try:
        folders = [path for path in runs_dir.iterdir() if path.is_dir()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [path.resolve() for path in folders if read_liveness(RunFolder(path)).is_alive]


class RunControl:
    """The run that the window follows: its status, and requests to it. Main thread only."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = RunFolder(path)
        self._process = process
        self._launcher: psutil.Process | None = None
        self._stop_wanted = False
        self._requested: dict[str, float] = {}  # requested commands, and when
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
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # it has ended, and its PID may be reused
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
        return status_of(self.view, liveness, time.time(), self._stop_wanted)

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
    def has_samples(self) -> bool:
        """Whether the run has sample prompts."""
        with self.view.lock:
            run_info = self.view.run_info
        return run_info is None or bool(run_info.config.get("samples"))

    @property
    def is_alive(self) -> bool:
        """Whether the run is active."""
        return self.status().is_alive

    def request(self, name: str) -> str:
        """Request a backup, samples or a saved model; return an error message or ""."""
        try:
            request_command(self.folder, name)
        except OSError as error:
            return f"The {name} request could not be written: {error.strerror or error}."
        self._requested[name] = time.monotonic()
        return ""

    def is_pending(self, name: str) -> bool:
        """Whether the run has not yet picked up the request."""
        if name in self._requested and not (self.folder.commands_dir / name).exists():
            del self._requested[name]
        return name in self._requested

    def stop(self, *, is_closing: bool = False) -> str:
        """Request a stop after a backup; return an error message or "".

        `is_closing`: the window cannot repeat the request, so a run that has not started training also gets a signal.
        A run that waits for other machines gets one in any case, because it reads no commands.
        """
        self._stop_wanted = True
        if (is_closing or self.join_prompt is not None) and not self.has_started:
            request_graceful_stop(self._launcher)
        try:
            request_command(self.folder, "stop")
        except OSError as error:
            if not request_graceful_stop(self._launcher):
                self._stop_wanted = False
                return f"The stop request could not be written: {error.strerror or error}."
        self._follower.poll_now()
        return ""

    def resend_stop(self) -> None:
        """Repeat a stop request that the run's start has deleted along with older commands."""
        if self._stop_wanted and not (self.folder.commands_dir / "stop").exists():
            with self.view.lock:
                is_over = self.view.finished is not None
            if not is_over:
                self.stop()

    def force_stop(self) -> None:
        """Kill all processes of the run without a backup, in a thread because it may take seconds."""
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
