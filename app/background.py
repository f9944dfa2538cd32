"""Work off the Tk thread; what comes of it is handed back on the Tk thread."""

from __future__ import annotations

import queue
import threading
import tkinter as tk
from collections.abc import Callable
from typing import Any, TypeVar

from app import texts
from modules.config import TandemError

T = TypeVar("T")

THREADS = 3  # daemons: none of them keeps the program alive
POLL_MS = 15
GONE = ('bad window path name ".', 'invalid command name ".')  # what Tk says of a widget that was destroyed


class Background:
    """A few threads and one queue, which is looked into only while work is under way; they end with the window."""

    def __init__(self, root: tk.Misc) -> None:
        self._root = root
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._pending = 0
        self._threads = 0
        self._is_open = True
        tk.Misc.bind(root, "<Destroy>", self._root_destroyed, add="+")

    def run(
        self,
        function: Callable[[], T],
        then: Callable[[T], object],
        failed: Callable[[str], object] | None = None,
    ) -> None:
        """Call `function` in a thread, then `then` with its result, or `failed` with a sentence, on the Tk thread.

        Without `failed` a failure is dropped, which suits looks that may be tried again. A defect (any other
        exception) is raised on the Tk thread, where it is reported like every other.
        """
        if not self._is_open:
            return
        if self._threads < THREADS:
            self._threads += 1
            threading.Thread(target=self._work, name=f"background-{self._threads}", daemon=True).start()
        self._jobs.put(lambda: self._do(function, then, failed))
        self._pending += 1
        if self._pending == 1:
            self._root.after(POLL_MS, self._collect)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it knows widgets, which must not outlive their window in here

    def _root_destroyed(self, event: tk.Event[tk.Misc]) -> None:
        """The threads end after what they are at: nobody is there to be told any more."""
        if event.widget is self._root and self._is_open:
            self._is_open = False
            for _ in range(self._threads):
                self._jobs.put(None)

    def _do(
        self, function: Callable[[], T], then: Callable[[T], object], failed: Callable[[str], object] | None
    ) -> None:
        try:
            result = function()
        except (TandemError, OSError) as error:
            sentence = _sentence(error)
            self._results.put(lambda: failed(sentence) if failed else None)
        except BaseException as error:  # noqa: BLE001  (raised again where the window reports defects)
            defect = error
            self._results.put(lambda: _raise(defect))
        else:
            self._results.put(lambda: then(result))

    def _collect(self) -> None:
        """Hand back what is done; one result a turn, so that a flood of them never holds up the keyboard."""
        try:
            deliver = self._results.get_nowait()
        except queue.Empty:
            self._root.after(POLL_MS, self._collect)
            return
        self._pending -= 1
        if self._pending:
            self._root.after(1 if not self._results.empty() else POLL_MS, self._collect)
        try:
            deliver()
        except tk.TclError as error:
            if not str(error).startswith(GONE):
                raise
            # whoever asked is gone: another size rebuilds all sections


def _sentence(error: TandemError | OSError) -> str:
    if isinstance(error, OSError):
        return texts.FILE_FAILED.format(file=error.filename or texts.A_FILE, reason=error.strerror or error)
    return str(error)


def _raise(error: BaseException) -> Any:
    raise error
