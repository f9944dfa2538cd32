"""The signals a run answers: Ctrl-C and the like request a stop, SIGUSR1 a pause (back up and exit).

SIGHUP, SIGQUIT and SIGUSR2 would end a process at once; they, too, request a stop, unless they are ignored (nohup) or
a program that uses the library handles them.

Slurm sends SIGUSR1 ahead of a time limit, to every process of a job or to any one of them, at any time. A process
without a handler dies of it silently: torchrun, for example, or a rank that is still importing torch. So
`scripts/train.py` first blocks it; its child processes inherit that, and only those with a handler unblock it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Final, TypeAlias

# Windows has no such signal; no signal has number 0.
PAUSE_SIGNAL: Final[int] = getattr(signal, "SIGUSR1", 0)
_IGNORES_AFTER_STOP = threading.Event()
Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers


def termination_signals() -> list[signal.Signals]:
    """The termination signals that this system has and that should be handled.

    SIGINT is included even if it is currently ignored, as in a background job of a shell script: a signal sent to
    this process is meant.
    """
    return [*_existing("SIGINT", "SIGTERM", "SIGBREAK"), *other_deadly_signals()]


def other_deadly_signals() -> list[signal.Signals]:
    """SIGHUP, SIGQUIT and SIGUSR2, as far as one of them would now end this process."""
    found = _existing("SIGHUP", "SIGQUIT", "SIGUSR2")
    return [each for each in found if signal.getsignal(each) == signal.SIG_DFL]


def _existing(*names: str) -> list[signal.Signals]:
    return [signal.Signals[name] for name in names if hasattr(signal, name)]


def describe_stop(number: int) -> str:
    """What has sent a signal that stops a run, for "stopped by ..."."""
    name = signal.Signals(number).name
    return {"SIGINT": "Ctrl-C", "SIGHUP": "the end of its terminal (SIGHUP)"}.get(name, f"a signal ({name})")


def ignore_termination_signals() -> None:
    """Keep the exit code of a run that has ended, should a signal arrive while Python shuts down."""
    for number in termination_signals():
        signal.signal(number, signal.SIG_IGN)


def keep_exit_code() -> None:
    """In a program that ends with its run, which has ended: only Ctrl-C still changes its exit code.

    A command that it starts ends at these signals as others do, which it would not if they were ignored here.
    """
    if not ignores_signals_after_stop():
        return
    for number in termination_signals():
        if number != signal.SIGINT and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


@contextmanager
def signals_handled(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Inside the block `handler` gets these signals; no effect outside the main thread, the only one that may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


def termination_signals_ignored() -> AbstractContextManager[None]:
    """Inside the block no signal keeps this process from ending those that it has started."""
    return signals_handled(termination_signals(), signal.SIG_IGN)


def ignore_signals_after_stop() -> None:
    """For a program that ends with its run: from the end of a stopped run on, signals do not change its exit code."""
    _IGNORES_AFTER_STOP.set()


def ignores_signals_after_stop() -> bool:
    """Whether this process is such a program."""
    return _IGNORES_AFTER_STOP.is_set()


def block_pause_signal() -> None:
    """Keep SIGUSR1 pending, in this process and every one started from it, until it is unblocked."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {PAUSE_SIGNAL})


@contextmanager
def pause_signal_blocked() -> Iterator[None]:
    """`block_pause_signal` for the length of the block."""
    if sys.platform == "win32":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {PAUSE_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def pause_signal_unblocked() -> Iterator[None]:
    """Inside the block SIGUSR1 reaches its handler, including one that was already pending."""
    if sys.platform == "win32":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_UNBLOCK, {PAUSE_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
