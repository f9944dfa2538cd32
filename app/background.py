"""Runs work in background threads and delivers the results on the Tk thread."""

from __future__ import annotations

import queue
import threading
import tkinter as tk
from collections.abc import Callable
from typing import Any, TypeVar

from app.widgets.own_events import bind_own
from modules.config import TandemError

T = TypeVar("T")

THREADS = 3  # daemon threads, so that none keeps the program alive
POLL_MS = 15
LONGEST_POLL_MS = 250  # of work that takes seconds, such as a program that imports torch
DESTROYED_WIDGET = ('bad window path name ".', 'invalid command name ".')  # start of the error that Tk raises for one


class Background:
    """A small thread pool; its result queue is polled only while work is pending. It ends with the window."""

    def __init__(self, root: tk.Misc) -> None:
        self._root = root
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._pending = 0
        self._pause_ms = POLL_MS
        self._threads = 0
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
        if self._threads < THREADS:
            self._threads += 1
            name = f"background-{self._threads}"
            # not a bound method: a thread that outlives the window must not free it, which only the Tk thread may do
            threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()
        self._jobs.put(lambda: self._execute(function, then, failed))
        self._pending += 1
        self._pause_ms = POLL_MS
        if self._pending == 1:
            self._root.after(POLL_MS, self._collect)

    def _root_destroyed(self) -> None:
        """End each thread after its current job: nobody is left to receive results."""
        if self._is_open:
            self._is_open = False
            for _ in range(self._threads):
                self._jobs.put(None)

    def _execute(
        self, function: Callable[[], T], then: Callable[[T], object], failed: Callable[[str], object] | None
    ) -> None:
        try:
            result = function()
        except (TandemError, OSError) as error:
            message = _message(error)
            self._results.put(lambda: failed(message) if failed else None)
        except BaseException as error:  # noqa: BLE001  (raised again on the Tk thread)
            bug = error
            self._results.put(lambda: _raise(bug))
        else:
            self._results.put(lambda: then(result))

    def _collect(self) -> None:
        """Deliver one result per turn, so that many of them never block the keyboard."""
        try:
            deliver = self._results.get_nowait()
        except queue.Empty:
            self._root.after(self._pause_ms, self._collect)
            self._pause_ms = min(2 * self._pause_ms, LONGEST_POLL_MS)
            return
        self._pause_ms = POLL_MS
        self._pending -= 1
        if self._pending:
            self._root.after(1 if not self._results.empty() else POLL_MS, self._collect)
        try:
            deliver()
        except tk.TclError as error:
            if not str(error).startswith(DESTROYED_WIDGET):
                raise
            # the caller is gone: a change of scale rebuilds all sections


def _work(jobs: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it references widgets, which must not outlive their window


def _message(error: TandemError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}."
    return str(error)


def _raise(error: BaseException) -> Any:
    raise error
