"""Python's search for garbage, on the Tk thread only.

It may run in any thread that happens to allocate, and would there delete pictures and whole windows, which Tk answers
by ending the process (Tcl_AsyncDelete) or by waiting for ever.
"""

from __future__ import annotations

import gc
import tkinter as tk
from typing import Final

_LOOK_MS: Final = 200


class GarbageOnTkThread:
    """Collects as Python itself would, but between two events of the window."""

    def __init__(self, root: tk.Misc) -> None:
        self._root = root
        gc.collect()
        gc.freeze()  # what is there now (modules, mostly) stays: the largest collections become short
        gc.disable()
        self._job = root.after(_LOOK_MS, self._look)

    def stop(self) -> None:
        """Search no more. Python's own search stays off: what is left of the window is garbage now, which only this
        thread may clear away, as the end of the program does.
        """
        self._root.after_cancel(self._job)
        gc.unfreeze()

    def _look(self) -> None:
        counts, limits = gc.get_count(), gc.get_threshold()
        for generation in (2, 1, 0):
            if counts[generation] > limits[generation] > 0:
                gc.collect(generation)
                break
        self._job = self._root.after(_LOOK_MS, self._look)
