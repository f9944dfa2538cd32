"""Starts the process that works off a queue, detached from this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Final

from modules import ROOT
from modules.run.folder.run_folder import not_writable_error
from modules.run.launch.detached import start_detached
from modules.run.queue.folder import RunQueue

SCRIPT: Final = ROOT / "scripts" / "run_queue.py"


def start_runner(queue: RunQueue) -> subprocess.Popen[bytes] | None:
    """Start a runner that waits for new entries as long as this process lives, or let the current one go on: then None.

    Raises ConfigError.
    """
    queue.want("run")
    if queue.has_runner():
        return None
    argv = [
        sys.executable,
        str(SCRIPT),
        "run",
        "--runs_dir",
        str(queue.runs_dir),
        "--keep_waiting_for",
        str(os.getpid()),
    ]
    try:
        process = start_detached(argv, queue.console_file)
    except OSError as error:
        raise not_writable_error(queue.path, error) from error
    threading.Thread(target=process.wait, name="end of the queue", daemon=True).start()  # reaps it
    return process
