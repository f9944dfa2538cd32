"""Reads a run's events in a thread of its own, so that neither a flood nor a slow disk holds up the window."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from app.run_status import Life, look_at
from app.run_view import RunView
from modules.run import EventReader, RunFolder

LOOK_EVERY_S: Final = 0.2
_LIFE_EVERY_S: Final = 1.0
# About 75 events: parsed in less than a millisecond, after which the window gets its turn.
_SLICE_BYTES: Final = 16 << 10
_REST_S: Final = 0.001


class Follower:
    """Keeps a RunView and the run's signs of life up to date until `stop`."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.view = RunView()
        self.life = Life()
        self.is_caught_up = threading.Event()
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow {path.name}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; does not wait for it."""
        self._ending.set()
        self._wake.set()

    def look_now(self) -> None:
        """Something has just happened to the run: do not wait for the next look."""
        self._wake.set()

    def _follow(self) -> None:
        reader = EventReader(self.folder.events_file, at_once_bytes=_SLICE_BYTES)
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
                next_life = now + _LIFE_EVERY_S
                self._note(look_at(self.folder))
            if events:
                time.sleep(_REST_S)
            else:
                self.is_caught_up.set()
                self._wake.wait(LOOK_EVERY_S)

    def _note(self, life: Life) -> None:
        if life != self.life:
            self.life = life
            with self.view.lock:
                self.view.version += 1
