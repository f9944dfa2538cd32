"""How many entries wait in the queue, read now and then, whatever page is in sight."""

from __future__ import annotations

import time
from typing import Final

from app.state import AppState
from modules.run.queue.folder import RunQueue

_EVERY_S: Final = 10.0  # rarely, because each time an idle window wakes


class QueueWatch:
    """Keeps `queued` of the state up to date as long as `refresh` is called; a queue that cannot be read has none."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._is_reading = False
        self._read_at = float("-inf")

    def refresh(self) -> None:
        """Read the queue in a thread if it is time."""
        if self._is_reading or time.monotonic() - self._read_at < _EVERY_S:
            return
        self._is_reading = True
        queue = RunQueue(self._state.runs_dir)
        self._state.background.run(lambda: len(queue.read().waiting), self._found, lambda why: self._found(0))

    def _found(self, count: int) -> None:
        self._is_reading, self._read_at = False, time.monotonic()
        self._state.queued = count
