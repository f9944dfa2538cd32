"""Ending a run without waiting for a backup, also one whose launcher is gone or whose ranks hear nothing."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from modules.run.launcher_mark import launcher_of
from modules.run.process_family import ProcessFamily, tokens_of
from modules.run.run_folder import RunFolder

# The launcher takes two requests within less than this for one.
_BETWEEN_REQUESTS_S = 0.5


def ask_launcher_to_stop(launcher: psutil.Process | None) -> bool:
    """Ask for a stop after a backup by a signal, for a folder that takes no command; False without a launcher."""
    if launcher is None or sys.platform == "win32":  # which knows no signal that one could answer
        return False
    with suppress(psutil.Error):
        launcher.send_signal(signal.SIGTERM)
        return True
    return False


def end_at_once(folder: RunFolder, launcher: psutil.Process | None = None, *, patience_s: float = 5.0) -> None:
    """End every process of the run; takes up to `patience_s` for the launcher to write down how it ended.

    `launcher` as it was known before, for a folder that has been deleted since.
    """
    found = launcher_of(folder)
    launcher = launcher if found is None else found.process
    if ask_launcher_to_stop(launcher):
        time.sleep(_BETWEEN_REQUESTS_S)
        ask_launcher_to_stop(launcher)
        psutil.wait_procs([launcher] if launcher is not None else [], timeout=patience_s)
    tokens = tokens_of(_processes_in(folder, launcher))
    if launcher is not None:
        with suppress(psutil.Error):
            launcher.kill()
    for token in tokens:
        ProcessFamily(token).end(patience_s=0.0)


def _processes_in(folder: RunFolder, launcher: psutil.Process | None) -> list[psutil.Process]:
    """The launcher's children and all processes whose command line names the run folder."""
    found = [] if launcher is None else _children(launcher)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            argv = process.cmdline()
            if "--run_folder" in argv[:-1]:
                named = Path(process.cwd(), argv[argv.index("--run_folder") + 1])
                if named.resolve() == folder.path.resolve():
                    found.append(process)
    return found


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []
