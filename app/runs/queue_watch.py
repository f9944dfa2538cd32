"""The queue, read now and then, whatever page is in sight: how many entries wait, and which one trains."""

from __future__ import annotations

import os
import time
from typing import Final

from app.state import AppState
from modules.run.queue.entries import Entry, Queue
from modules.run.queue.folder import RunQueue

_EVERY_S: Final = 10.0  # rarely, because each time an idle window wakes
_WORKING_S: Final = 2.0  # while it trains


class QueueWatch:
    """Keeps `queued` of the state up to date as long as `refresh` is called; a queue that cannot be read has none.

    The run that the queue has started is followed once, by `follow`, unless another one is active. What runs already
    when the window opens is left to `RunActions.attach`.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._is_reading = False
        self._read_at = 0.0
        self._is_working = False
        self._followed: tuple[int, float | None] | None = None  # the start of an entry

    def refresh(self) -> None:
        """Read the queue in a thread if it is time."""
        every = _WORKING_S if self._is_working else _EVERY_S
        if self._is_reading or (self._read_at and time.monotonic() - self._read_at < every):
            return
        self._is_reading = True
        queue = RunQueue(self._state.runs_dir)
        self._state.background.run(queue.read, lambda found: self._read(queue, found), lambda why: self._read(queue))

    def follow(self, queue: RunQueue, found: Queue) -> None:
        """Show in the run bar what the queue has started, once, unless another run is active there."""
        running = _running(found)
        if running is None or _start(running) == self._followed:
            return
        folder, run = queue.run_folder(running), self._state.run
        is_shown = run is not None and run.folder.path.absolute() == folder.path.absolute()
        if not is_shown and ((run is not None and run.is_alive) or not os.path.exists(folder.config_file)):
            return
        self._followed = _start(running)
        if not is_shown:
            self._state.actions.follow(folder.path)

    def _read(self, queue: RunQueue, found: Queue | None = None) -> None:
        is_first, self._is_reading, self._read_at = not self._read_at, False, time.monotonic()
        found = found or Queue(entries=[])
        running = _running(found)
        self._state.queued = len(found.waiting)
        self._is_working = running is not None
        if is_first and running is not None and self._state.run is not None:
            self._followed = _start(running)
        self.follow(queue, found)


def _running(queue: Queue) -> Entry | None:
    return next((entry for entry in queue.entries if entry.state == "running"), None)


def _start(entry: Entry) -> tuple[int, float | None]:
    return entry.number, entry.started
