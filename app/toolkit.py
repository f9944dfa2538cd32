"""customtkinter, imported so that it does not write over fonts that another window is using.

At each import it copies its fonts to ~/.fonts by truncating the files that are there. A window that is open has them
mapped into memory and would be ended by SIGBUS. All modules of the window import `ctk` from here.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
from pathlib import Path

__all__ = ["ctk"]


def _copy_if_different(source: str, folder: str) -> None:
    """Like shutil.copy into a folder, but a file of the same content is kept, and another one is replaced whole."""
    target = Path(folder) / Path(source).name
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    partial = target.with_name(f".{target.name}-{os.getpid()}")
    shutil.copyfile(source, partial)
    partial.replace(target)


_copy = shutil.copy
shutil.copy = _copy_if_different  # type: ignore[assignment]
try:
    import customtkinter as ctk  # noqa: TID251  # here, and nowhere else
finally:
    shutil.copy = _copy

# It asks for the system's colours 33 times a second, which app/widgets/appearance.py does better, and for the scale of
# the screen 10 times, which only Windows can change: together one percent of a core.
_NEVER_MS = 2**31 - 1
ctk.AppearanceModeTracker.update_loop_interval = _NEVER_MS
if sys.platform != "win32":
    ctk.ScalingTracker.update_loop_interval = _NEVER_MS
