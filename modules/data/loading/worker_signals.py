"""Loader workers ignore every SIGTERM that does not come from their trainer.

SIGTERM asks the trainer to make a backup and stop. Slurm, systemd and `kill -- -GROUP` send it to all processes, and a
worker that dies of it makes torch stop the trainer before the backup is made.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def ignore_foreign_sigterm(_worker: int) -> None:
    """The worker_init_fn of the DataLoader: from now on only the parent's SIGTERM ends this process."""
    if sys.platform == "linux":  # elsewhere a process cannot see who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_sigterm_of, args=(os.getppid(),), name="signals", daemon=True).start()


def _exit_on_sigterm_of(trainer: int) -> None:
    if sys.platform == "linux":
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
            pass
        os._exit(0)
