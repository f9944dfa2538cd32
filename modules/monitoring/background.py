"""Work that is done in a thread while training goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[], None]
MOST_WAITING: Final = 16


class BackgroundThread:
    """Does one thing after the other, in the order in which they are submitted. None of them may raise."""

    def __init__(self, name: str, most_waiting: int = MOST_WAITING) -> None:
        """`most_waiting`: of those submitted; 0: any number."""
        self._name = name
        self._queue = queue.Queue[Work | None](most_waiting)
        self._thread: threading.Thread | None = None

    def submit(self, work: Work) -> None:
        """Do `work` soon; waits if too many others do."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Wait until everything is done."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
