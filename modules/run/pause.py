"""SIGUSR1 asks a run to pause: back up, end with a code of its own, and go on later. Slurm sends it ahead of a limit.

It comes to every process of a job or to any one of them, at any time, and a process that does not expect it dies of it
without a word: torchrun, say, or a rank that is still importing torch. So `scripts/train.py` begins by holding it back,
which all processes that it starts inherit, and only those that can obey let it through.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Windows has no such signal; no signal has number 0.
PAUSE_SIGNAL: Final[int] = getattr(signal, "SIGUSR1", 0)


def hold_back_pause() -> None:
    """From now on SIGUSR1 waits, here and in every process started from here, until it is let through."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {PAUSE_SIGNAL})


@contextmanager
def pause_held_back() -> Iterator[None]:
    """As `hold_back_pause`, for the length of the block."""
    if sys.platform == "win32":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {PAUSE_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def pause_let_through() -> Iterator[None]:
    """Inside the block SIGUSR1 reaches its handler, also one that has been waiting since before."""
    if sys.platform == "win32":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_UNBLOCK, {PAUSE_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
