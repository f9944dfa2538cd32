"""Stops a run without waiting for a backup, even if its launcher is gone or its ranks do not respond."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from modules.run.folder.pidfile import find_launcher
from modules.run.folder.run_folder import RunFolder
from modules.run.supervise.process_tree import ProcessTree, tree_tokens

# The launcher treats two requests within less than this as one.
_BETWEEN_REQUESTS_S = 0.5


def request_graceful_stop(launcher: psutil.Process | None) -> bool:
    """Request a stop after a backup by signal, if the folder is not writable; False without a launcher."""
    if launcher is None or sys.platform == "win32":  # which has no signal that a process could handle
        return False
    with suppress(psutil.Error):
        launcher.send_signal(signal.SIGTERM)
        return True
    return False


def force_stop(folder: RunFolder, launcher: psutil.Process | None = None, *, patience_s: float = 5.0) -> None:
    """Kill every process of the run, after giving the launcher up to `patience_s` to record how it ended.

    `launcher` is the last known one, in case the folder has been deleted since.
    """
    found = find_launcher(folder)
    launcher = launcher if found is None else found.process
    if request_graceful_stop(launcher):
        time.sleep(_BETWEEN_REQUESTS_S)
        request_graceful_stop(launcher)
        psutil.wait_procs([launcher] if launcher is not None else [], timeout=patience_s)
    tokens = tree_tokens(_processes_in(folder, launcher))
    if launcher is not None:
        with suppress(psutil.Error):
            launcher.kill()
    for token in tokens:
        ProcessTree(token).terminate(patience_s=0.0)


def _processes_in(folder: RunFolder, launcher: psutil.Process | None) -> list[psutil.Process]:
    """The launcher's descendants and all processes whose command line names the run folder."""
    found = [] if launcher is None else _descendants(launcher)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            argv = process.cmdline()
            if "--run_folder" in argv[:-1]:
                named = Path(process.cwd(), argv[argv.index("--run_folder") + 1])
                if named.resolve() == folder.path.resolve():
                    found.append(process)
    return found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []
