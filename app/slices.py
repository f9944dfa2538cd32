"""Work in steps between the events of the window, so that nothing stalls: pages in sight first, then the others."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from app.background import DESTROYED_WIDGET

FIRST_MS = 1500  # after the last step for the page in sight
QUIET_S = 0.7  # since the last key, click or turn of the wheel
_QUIET_MS: Final = 60
_INPUTS: Final = ("<Key>", "<Button>", "<MouseWheel>")


class Slices:
    """Runs generators, one step at a time. A generator whose widgets are destroyed meanwhile is dropped."""

    def __init__(self, root: tk.Misc) -> None:
        self._root = root
        self._soon: list[Iterator[None]] = []
        self._quiet: Iterator[None] = iter(())
        self._input_at = 0.0
        self.pause_ms = 5  # before each step of what is in sight: the window draws the one before
        self._job = ""
        self.is_done = True  # nothing is left to do, not even in quiet moments
        for sequence in _INPUTS:
            root.bind_all(sequence, lambda event: self._saw_input(), add="+")

    @property
    def is_busy(self) -> bool:
        """Whether something in sight is not finished."""
        return bool(self._soon)

    def soon(self, steps: Iterator[None]) -> None:
        """Do these from now on, before what was begun earlier."""
        self._soon.append(steps)
        self._schedule(self.pause_ms)

    def in_quiet_moments(self, steps: Iterator[None]) -> None:
        """Do these while the window is left alone, instead of those given earlier."""
        self._quiet = steps
        self.is_done = False
        self._schedule(self.pause_ms if self._soon else FIRST_MS)

    def _saw_input(self) -> None:
        self._input_at = time.monotonic()

    def _step(self) -> None:
        self._job = ""
        was_busy = self.is_busy
        try:
            if self._soon:
                steps = self._soon[-1]
                if not _advance(steps):
                    self._soon.remove(steps)
            elif time.monotonic() - self._input_at > QUIET_S:
                self.is_done = not _advance(self._quiet)
        finally:
            if self._soon:
                self._schedule(self.pause_ms)
            elif not self.is_done:
                self._schedule(FIRST_MS if was_busy else _QUIET_MS)

    def _schedule(self, pause_ms: int) -> None:
        if self._job:
            self._root.after_cancel(self._job)
        self._job = self._root.after(pause_ms, self._step)


def each(widgets: Iterable[tk.Misc], action: Callable[[tk.Misc], object]) -> Iterator[None]:
    """Do this for one widget at each step."""
    for widget in widgets:
        action(widget)
        yield


def _advance(steps: Iterator[None]) -> bool:
    """Do one more step; whether there was one."""
    try:
        next(steps)
    except StopIteration:
        return False
    except tk.TclError as error:
        if not str(error).startswith(DESTROYED_WIDGET):
            raise
        return False
    return True
