"""Garbage collection on the Tk thread only.

Python collects in whichever thread happens to allocate. There it would delete images and whole windows, and Tk would
abort the process (Tcl_AsyncDelete) or deadlock.
"""

from __future__ import annotations

import gc
import tkinter as tk
from typing import Final

_POLL_MS: Final = 200
_IDLE_MS: Final = 1000  # while nothing is allocated; each wake-up costs an idle window about 0.1 ms


class TkThreadCollector:
    """Collects at Python's own thresholds, but between two events of the window."""

    def __init__(self) -> None:
        """Before the first widget is made: what exists now, mostly modules, is exempt from later collections."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def start(self, root: tk.Misc) -> None:
        """Collect whenever the events of this window leave a moment."""
        self._root = root
        self._job = root.after(_POLL_MS, self._collect)

    def stop(self) -> None:
        """Stop collecting. Python's own collector stays off: the remains of the window are garbage now, which only this
        thread may free, as it does at exit.
        """
        self._root.after_cancel(self._job)

    def _collect(self) -> None:
        counts, limits = gc.get_count(), gc.get_threshold()
        due = next((generation for generation in (2, 1, 0) if counts[generation] > limits[generation] > 0), None)
        if due is not None:
            gc.collect(due)
        self._job = self._root.after(_IDLE_MS if due is None else _POLL_MS, self._collect)
