"""Starts training in a process of its own that outlives the one that starts it: the window, or the queue."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from modules import ROOT
from modules.config import ConfigError, ResumeError, TrainConfig, load_config, save_config
from modules.files import open_for_writing
from modules.run.folder.pidfile import find_launcher, write_pidfile
from modules.run.folder.run_folder import RunFolder, not_writable_error
from modules.run.folder.run_lock import training_has_ended
from modules.run.join.join_token import JOIN_TOKEN
from modules.run.launch.plan import LaunchPlan
from modules.run.launch.rank_env import without_rank
from modules.run.supervise.process_tree import START_TOKEN

TRAIN_SCRIPT: Final = ROOT / "scripts" / "train.py"
_KILLED_ENDS_WITHIN_S: Final = 2.0


def check_config(config: TrainConfig) -> None:
    """Raise TandemError for a config that this computer cannot start as machine 0."""
    if config.num_nodes > 1 and config.node_rank > 0:
        raise ConfigError(
            f"This machine is number {config.node_rank} of {config.num_nodes}; a multi-machine run is started "
            "on machine 0. Set its number (node_rank) to 0 here, or paste machine 0's join line into a "
            "terminal."
        )
    LaunchPlan.from_config(config, config_path="config.json")


def create_run(config: TrainConfig) -> RunFolder:
    """Check that this computer can run the config, and create the run folder. Raises TandemError."""
    check_config(config)
    return RunFolder(RunFolder.create(config).path.absolute())


def next_free_name(folder: RunFolder, taken: Sequence[str] = ()) -> str:
    """The next free name, none of `taken`: "cats" becomes "cats-2"."""
    stem, _, end = folder.name.rpartition("-")
    if not (stem and end.isdecimal()):
        stem, end = folder.name, "1"
    names = (f"{stem}-{number}" for number in itertools.count(int(end) + 1))
    return next(name for name in names if name not in taken and not (folder.path.parent / name).exists())


def launch(
    folder: RunFolder,
    *,
    resume: bool = False,
    config: TrainConfig | None = None,
    alone: bool = False,
    take_token: Callable[[], str] | None = None,
    hosts: Sequence[str] = (),
    cwd: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start training in an existing run folder, in a session of its own. Raises ConfigError (full disk, a link in it),
    or ResumeError while the run is active: another window may have resumed it a moment ago.

    `take_token` gives the secret with which other machines join; without it a multi-machine run generates one. It
    starts `hosts` over ssh, as many of them as it has other machines. `alone` resumes such a run without the others.
    With `config`, the run resumes with these settings, and keeps its own if the change is refused. Relative paths of
    the config begin at `cwd`. `variables` are set in its environment.
    """
    settings = folder.config_file if config is None else folder.resume_config_file
    if not training_has_ended(folder, within_s=_KILLED_ENDS_WITHIN_S) or find_launcher(folder) is not None:
        # its console, stop request and pidfile stay as they are
        raise ResumeError(f"the run {folder.name} is active already", "Stop it first, or wait until it has ended")
    argv = [sys.executable, str(TRAIN_SCRIPT), "--config", str(settings), "--start_in", str(folder.path)]
    argv += ["--resume", "latest"] if resume else []
    argv += ["--set", "num_nodes=1"] if alone else []
    try:
        folder.make_directories()
        (folder.commands_dir / "stop").unlink(missing_ok=True)
        folder.start_failure_file.unlink(missing_ok=True)
        if config is not None:
            save_config(config, settings)
        others = load_config(settings).num_nodes - 1 if not alone and (take_token or hosts) else 0
        token = take_token() if take_token is not None and others else ""
        argv += ["--hosts", ",".join(hosts[:others])] if hosts[:others] else []
        process = start_detached(argv, folder.console_file, token=token, cwd=cwd, variables=variables)
    except OSError as error:
        raise not_writable_error(folder.path, error) from error
    write_pidfile(folder, process.pid)
    # Reaps the process even if the window follows another run by then.
    threading.Thread(target=process.wait, name=f"end of {folder.name}", daemon=True).start()
    return process


def start_detached(
    argv: Sequence[str],
    console_file: Path,
    *,
    token: str = "",
    cwd: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start one of Tandem's programs in a session of its own, with its output in `console_file`. Raises OSError."""
    detached = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)) | int(getattr(subprocess, "DETACHED_PROCESS", 0))
    with os.fdopen(open_for_writing(console_file, append=True), "ab") as console:
        console.truncate(0)  # an earlier program that still writes there goes on at its end
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env={**_environment(token), **variables},
            cwd=cwd,
            start_new_session=sys.platform != "win32",
            creationflags=detached,
        )


def _environment(token: str) -> dict[str, str]:
    """The variables of a start: the token is passed here, because every user can read a command line."""
    kept = {name: value for name, value in without_rank(os.environ).items() if name not in (START_TOKEN, JOIN_TOKEN)}
    return {**kept, JOIN_TOKEN: token} if token else kept
