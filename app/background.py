"""Runs work in background threads and delivers the results on the Tk thread."""

from __future__ import annotations

import queue
import threading
import tkinter as tk
from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

from app.widgets.own_events import bind_own
from modules.config import TandemError

T = TypeVar("T")
# calls `then` or `failed`
Outcome: TypeAlias = "Callable[[Callable[[Any], object], Callable[[str], object] | None], object]"

THREADS = 3  # daemon threads, so that none keeps the program alive
POLL_MS = 15
LONGEST_POLL_MS = 250  # of work that takes seconds, such as a program that imports torch
DESTROYED_WIDGET = ('bad window path name ".', 'invalid command name ".')  # start of the error that Tk raises for one


class Background:
    """A small thread pool; its result queue is polled only while work is pending. It ends with the window.

    Only the Tk thread may free what belongs to widgets, such as fonts and colours: Tk may crash otherwise. A thread
    therefore never holds the last reference to a function it was given.
    """

    def __init__(self, root: tk.Misc) -> None:
        _ENDING[:] = [one for one in _ENDING if any(thread.is_alive() for thread in one._threads)]
        self._root = root
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._numbers = count()
        self._pending: dict[int, tuple[Callable[[], Any], Callable[[Any], object], Callable[[str], object] | None]] = {}
        self._pause_ms = POLL_MS
        self._threads: list[threading.Thread] = []
        self._is_open = True
        bind_own(root, "<Destroy>", self._root_destroyed)

    def run(
        self,
        function: Callable[[], T],
        then: Callable[[T], object],
        failed: Callable[[str], object] | None = None,
    ) -> None:
        """Call `function` in a thread, then on the Tk thread `then(result)` or, after an error, `failed(message)`.

        `failed` gets TandemError and OSError; without it they are dropped, which suits checks that can be repeated. Any
        other exception is a bug: it is raised on the Tk thread, where all bugs are reported.
        """
        if not self._is_open:
            return
        if len(self._threads) < THREADS:
            name = f"background-{len(self._threads) + 1}"
            thread = threading.Thread(target=_work, args=(self._jobs, self._results), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        number = next(self._numbers)
        self._pending[number] = function, then, failed
        self._jobs.put((number, function))
        self._pause_ms = POLL_MS
        if len(self._pending) == 1:
            self._root.after(POLL_MS, self._collect)

    def _root_destroyed(self) -> None:
        """End each thread after its current job: nobody is left to receive results."""
        if self._is_open:
            self._is_open = False
            _ENDING.append(self)
            for _ in self._threads:
                self._jobs.put(None)

    def _collect(self) -> None:
        """Deliver one result per turn, so that many of them never block the keyboard."""
        try:
            number, outcome = self._results.get_nowait()
        except queue.Empty:
            self._root.after(self._pause_ms, self._collect)
            self._pause_ms = min(2 * self._pause_ms, LONGEST_POLL_MS)
            return
        self._pause_ms = POLL_MS
        _, then, failed = self._pending.pop(number)
        if self._pending:
            self._root.after(1 if not self._results.empty() else POLL_MS, self._collect)
        try:
            outcome(then, failed)
        except tk.TclError as error:
            if not str(error).startswith(DESTROYED_WIDGET):
                raise
            # the caller is gone: a change of scale rebuilds all sections


_ENDING: Final[list[Background]] = []  # of destroyed windows, until their threads have ended


def _work(
    jobs: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None], results: queue.SimpleQueue[tuple[int, Outcome]]
) -> None:
    while (job := jobs.get()) is not None:
        number, function = job
        outcomes = [_outcome(function)]
        del job, function  # before the Tk thread can take the outcome and forget them
        results.put((number, outcomes.pop()))


def _outcome(function: Callable[[], Any]) -> Outcome:
    try:
        result = function()
    except (TandemError, OSError) as error:
        message = _message(error)
        return lambda then, failed: failed(message) if failed else None
    except BaseException as error:  # noqa: BLE001  (raised again on the Tk thread)
        bug = error
        return lambda then, failed: _raise(bug)
    return lambda then, failed: then(result)


def _message(error: TandemError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}."
    return str(error)


def _raise(error: BaseException) -> Any:
    raise error
