"""Reads a run's events in a thread, so that neither many events nor a slow disk blocks the window."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from app.runs.liveness import Liveness, read_liveness
from modules.run import EventReader, RunFolder
from modules.run.view.run_view import RunView

POLL_EVERY_S: Final = 0.2
_LIVENESS_EVERY_S: Final = 1.0
# About 75 events, parsed in less than a millisecond; then the thread yields to the window.
_SLICE_BYTES: Final = 16 << 10
_YIELD_S: Final = 0.001


class Follower:
    """Keeps a RunView and the run's liveness up to date until `stop`."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.view = RunView()
        self.liveness = Liveness()
        self.is_caught_up = threading.Event()
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow {path.name}", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._ending.set()
        self._wake.set()

    def poll_now(self) -> None:
        """Poll now instead of after the interval."""
        self._wake.set()

    def _follow(self) -> None:
        reader = EventReader(self.folder.events_file, chunk_bytes=_SLICE_BYTES)
        restarts, next_life = 0, 0.0
        while not self._ending.is_set():
            events = reader.new()
            if reader.restarts != restarts:
                restarts = reader.restarts
                self.view.restart()
            if events:
                self.view.apply(events)
            now = time.monotonic()
            if now >= next_life or self._wake.is_set():
                self._wake.clear()
                next_life = now + _LIVENESS_EVERY_S
                self._set_liveness(read_liveness(self.folder))
            if events:
                time.sleep(_YIELD_S)
            else:
                self.is_caught_up.set()
                self._wake.wait(POLL_EVERY_S)

    def _set_liveness(self, liveness: Liveness) -> None:
        if liveness != self.liveness:
            self.liveness = liveness
            with self.view.lock:
                self.view.version += 1
