"""Starting, stopping and finding runs: each is a process of its own, which the window may leave at any time."""

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

from app import texts
from app.follower import Follower
from app.invitation import CONSOLE_FILE, Invitation
from app.run_status import Status, look_at, status_of
from modules.config import ConfigError, TrainConfig, load_config
from modules.run import LaunchPlan, RunFolder, request_command
from modules.run.end_at_once import ask_launcher_to_stop, end_at_once
from modules.run.launcher_mark import mark_launcher
from modules.run.run_folder import not_writable

TRAIN_SCRIPT: Final = Path(__file__).resolve().parents[1] / "scripts" / "train.py"
# What torchrun gives its ranks; inherited from wherever the window was started, it would make train.py a rank.
_NOT_PASSED_ON: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TANDEM_START")


def make_run(config: TrainConfig) -> RunFolder:
    """Check that this computer can do what the config asks, and make the run's folder. Raises TandemError."""
    if config.num_nodes > 1 and config.node_rank > 0:
        raise ConfigError(texts.NOT_MACHINE_0.format(rank=config.node_rank, nodes=config.num_nodes))
    LaunchPlan.from_config(config, config_path="config.json")
    return RunFolder(RunFolder.create(config).path.resolve())


def taken_name(config: TrainConfig) -> RunFolder | None:
    """The run that already has the name that the config gives; None where the name is free."""
    if config.run_name is None:
        return None
    folder = RunFolder((Path(config.runs_dir) / config.run_name).resolve())
    return folder if folder.events_file.exists() and folder.config_file.exists() else None


def next_name(folder: RunFolder) -> str:
    """A free name that tells the same: "cats" becomes "cats-2"."""
    stem, _, end = folder.name.rpartition("-")
    if not (stem and end.isdecimal()):
        stem, end = folder.name, "1"
    names = (f"{stem}-{number}" for number in itertools.count(int(end) + 1))
    return next(name for name in names if not (folder.path.parent / name).exists())


def launch(folder: RunFolder, *, resume: bool = False, token: str = "") -> subprocess.Popen[bytes]:
    """Start the training in a folder that is made; it lives on without the window. Raises ConfigError (full disk).

    `token` is the secret with which the other machines join, where the run has any; without it the run makes one.
    """
    argv = [sys.executable, str(TRAIN_SCRIPT), "--config", str(folder.config_file), "--start_in", str(folder.path)]
    argv += ["--resume", "latest"] if resume else []
    argv += ["--token", token] if token and load_config(folder.config_file).num_nodes > 1 else []
    detached = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)) | int(getattr(subprocess, "DETACHED_PROCESS", 0))
    try:
        folder.log_dir.mkdir(parents=True, exist_ok=True)
        (folder.commands_dir / "stop").unlink(missing_ok=True)
        with (folder.log_dir / CONSOLE_FILE).open("wb") as console:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON},
                start_new_session=sys.platform != "win32",
                creationflags=detached,
            )
    except OSError as error:
        raise not_writable(folder.path, error) from error
    mark_launcher(folder, process.pid)
    # Whoever follows another run meanwhile has no use for it any more; yet its end must be taken note of.
    threading.Thread(target=process.wait, name=f"end of {folder.name}", daemon=True).start()
    return process


def live_runs(runs_dir: Path) -> list[Path]:
    """The folders of runs that are being trained on this computer, the newest first."""
    try:
        folders = [path for path in runs_dir.iterdir() if path.is_dir()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [path.resolve() for path in folders if look_at(RunFolder(path)).is_alive]


class RunControl:
    """The run that the window follows: what it does, and what one may ask of it. Main thread only."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = RunFolder(path)
        self._process = process
        self._launcher: psutil.Process | None = None
        self._stop_wanted = False
        self._asked: dict[str, float] = {}  # commands on their way, and since when
        self._ending: threading.Thread | None = None
        self._follower = Follower(path)
        self.view = self._follower.view
        self._follower.start()

    @property
    def is_caught_up(self) -> bool:
        """Whether all that was written before has been read."""
        return self._follower.is_caught_up.is_set()

    def status(self) -> Status:
        """The run in words, at this moment."""
        life = self._follower.life
        if life.launcher is not None:
            self._launcher = life.launcher.process
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # it has ended, and its number may be given to another
            self._follower.look_now()
        if not life.exists:
            return replace(status_of(self.view, life, time.time()), is_alive=self._is_launcher_alive())
        if self._process is not None and not life.is_alive:
            return _STARTING
        if not life.is_alive and not self.is_caught_up:
            return _READING
        if not life.is_alive:
            self._stop_wanted = False
            self._asked.clear()
        return status_of(self.view, life, time.time(), self._stop_wanted)

    @property
    def invitation(self) -> Invitation | None:
        """How other machines join; None where none is waited for."""
        return self._follower.life.invitation

    @property
    def has_begun(self) -> bool:
        """Whether it trains, and therefore hears what is asked of it."""
        with self.view.lock:
            facts = self.view.facts
        return facts is not None and facts.time >= self._follower.life.started

    @property
    def has_samples(self) -> bool:
        """Whether there is anything to draw."""
        with self.view.lock:
            facts = self.view.facts
        return facts is None or bool(facts.config.get("samples"))

    @property
    def is_alive(self) -> bool:
        """Whether the run goes on."""
        return self.status().is_alive

    def ask(self, name: str) -> str:
        """Ask for a backup, samples or a saved model; returns why that cannot be, or an empty text."""
        try:
            request_command(self.folder, name)
        except OSError as error:
            return texts.NOT_ASKED.format(name=name, reason=error.strerror or error)
        self._asked[name] = time.monotonic()
        return ""

    def waits_for(self, name: str) -> bool:
        """Whether the run has not yet taken up what was asked."""
        if name in self._asked and not (self.folder.commands_dir / name).exists():
            del self._asked[name]
        return name in self._asked

    def stop(self, *, for_good: bool = False) -> str:
        """Ask the run to end after a backup; returns why that cannot be, or an empty text.

        `for_good` is for a window that will not be there to repeat it: a run that has not begun gets a signal, too,
        and so does one that waits for other machines and hears nothing else.
        """
        self._stop_wanted = True
        if (for_good or self.invitation is not None) and not self.has_begun:
            ask_launcher_to_stop(self._launcher)
        try:
            request_command(self.folder, "stop")
        except OSError as error:
            if not ask_launcher_to_stop(self._launcher):
                self._stop_wanted = False
                return texts.NOT_ASKED.format(name="stop", reason=error.strerror or error)
        self._follower.look_now()
        return ""

    def insist(self) -> None:
        """A start clears the commands of an earlier one, and may have taken away a stop that was meant for it."""
        if self._stop_wanted and not (self.folder.commands_dir / "stop").exists():
            with self.view.lock:
                is_over = self.view.finished is not None
            if not is_over:
                self.stop()

    def end_at_once(self) -> None:
        """End all processes of the run without a backup, in a thread: it may take seconds."""
        if self._ending is None or not self._ending.is_alive():
            self._ending = threading.Thread(target=self._end, name="end at once", daemon=True)
            self._ending.start()

    def leave(self) -> None:
        """Follow no longer; the run goes on."""
        self._follower.stop()

    def _is_launcher_alive(self) -> bool:
        """Whether the launcher is still there, though its mark went with the folder."""
        if self._launcher is None:
            return False
        try:
            return self._launcher.is_running() and self._launcher.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _end(self) -> None:
        end_at_once(self.folder, self._launcher)
        self._follower.look_now()


_READING: Final = Status("reading", texts.READING_RUN, "idle")
_STARTING: Final = Status("starting", texts.STARTING, "busy", texts.STARTING_DETAIL, is_alive=True)
