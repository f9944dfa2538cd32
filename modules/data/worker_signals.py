"""A loader process ends when its trainer says so, and by nobody else's word.

SIGTERM asks the trainer for a backup and an end. Slurm, systemd and `kill -- -GROUP` send it to every process there is,
and a loader process that dies of it (torch sees to that) takes the trainer with it before the backup is made.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def obey_only_the_trainer(_worker: int) -> None:
    """To be called first in a loader process: from now on only its parent's SIGTERM ends it."""
    if sys.platform == "linux":  # elsewhere a process cannot see who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_leave_when_told_by, args=(os.getppid(),), name="signals", daemon=True).start()


def _leave_when_told_by(trainer: int) -> None:
    if sys.platform == "linux":
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
            pass
        os._exit(0)
